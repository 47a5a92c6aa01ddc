"""What ONNX cannot express is said with the op and the line of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import small_bundle
from support.functions import Function
from torch import Tensor
from torch.nn import functional

from fuseconv.errors import UnsupportedError
from fuseconv.targets import TARGETS, Context


def a_kernel_for_each_image(_: None, x: Tensor, weight: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    image = x.reshape(1, batch * channels, height, width)
    return functional.conv2d(image, weight.flatten(0, 1), groups=batch).view(batch, -1, height - 2, width - 2)


def test_an_attribute_that_changes_with_the_sizes(tmp_path: Path) -> None:
    sizes = ("x=f32[batch:2..4,3,8,8]", "weight=f32[batch:2..4,5,3,3,3]")
    program = small_bundle.program(Function(a_kernel_for_each_image), sizes)
    with pytest.raises(UnsupportedError, match=r"cannot express aten\.conv2d.* such as the number of groups") as caught:
        TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))
    assert caught.value.where.endswith("in forward")  # of Function
    assert "static sizes" in caught.value.fix

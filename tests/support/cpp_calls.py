"""Calls of the C++ runtime next to the same calls in Python."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fuseconv.errors import FuseconvError
from fuseconv.runtime.model import load
from support.calls import draw

NAMES = ("x", "skip", "keep")


INPUTS = dict(zip(NAMES, draw(3, 5), strict=True))


def assert_same_refusal(
    run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path, target: str, tensors: Mapping[str, Tensor] = INPUTS
) -> None:
    """Python and C++ end with the same status and say the same three lines."""
    with pytest.raises(FuseconvError) as caught:
        load(bundle, target)(**tensors)
    status, text, _ = run_in_cpp(bundle, tensors, "--target", target)
    # Of a build's suffix, as in 2.13.0+cpu, LibTorch knows nothing.
    assert text == f"error: {caught.value}\n".replace(torch.__version__, torch.__version__.split("+")[0])
    assert status == caught.value.exit_status

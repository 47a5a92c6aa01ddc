"""A product without a kernel in ONNX Runtime is a reason that is known before the export, and no other product is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.functions import Function
from torch import Tensor

from fuseconv import cli, ops
from fuseconv.errors import UnsupportedError
from fuseconv.targets import TARGETS, Context

PRODUCTS: dict[str, Callable[[None, Tensor], Tensor]] = {
    "a product": lambda _, x: x @ x.transpose(-1, -2),
    "a linear": lambda _, x: torch.nn.functional.linear(x, x[0]),
    "an op of fuseconv": lambda _, x: ops.linear_act(x, x[0], None, None, "relu"),
    "no product": lambda _, x: x.transpose(-1, -2),
    "a product of another dtype": lambda _, x: (x.float() @ x.float().transpose(-1, -2)).to(x.dtype),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("target", ["onnx", "onnx-plugin"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_missing_kernel_is_known_before_the_export(name: str, dtype: str, target: str, tmp_path: Path) -> None:
    program = small_bundle.program(Function(PRODUCTS[name]), (f"x={dtype}[batch:2..4,8,8]",))
    reason = TARGETS[target].unsupported(program)
    if reason is None:
        TARGETS[target].write(program, tmp_path, Context(tmp_path))
        return
    assert dtype == "bf16"
    assert "ONNX Runtime on cpu has no kernel for the bfloat16 product" in reason
    with pytest.raises(UnsupportedError, match="has no kernel"):
        TARGETS[target].write(program, tmp_path, Context(tmp_path))


def test_the_op_library_multiplies_in_bfloat16() -> None:
    program = small_bundle.program(Function(PRODUCTS["an op of fuseconv"]), ("x=bf16[batch:2..4,8,8]",))
    assert TARGETS["onnx"].unsupported(program) is not None
    assert TARGETS["onnx-plugin"].unsupported(program) is None


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["convert", "convert --dry-run"])
def test_the_command_refuses_the_target_also_if_it_is_to_write_nothing(
    dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(layers, (torch.zeros(2, 8),)), tmp_path / "layers.pt2")
    words = ["convert", str(tmp_path / "layers.pt2"), "--dtype", "bf16", "-o", str(tmp_path / "out"), "--json", *dry]
    assert cli.main([*words, "--target", "onnx"]) == 4
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "ONNX Runtime on cpu has no kernel for the bfloat16 product" in message
    assert not (tmp_path / "out").exists()
    assert cli.main([*words, "--target", "export"]) == 0

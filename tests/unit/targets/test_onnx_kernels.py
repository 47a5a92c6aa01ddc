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
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import dim_symbols
from fuseconv.rulebook.rule import Rule
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


def halved(_m: None, x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(5):
        x = torch.relu(torch.conv2d(torch.nn.functional.pad(x, (0, 1, 0, 1)), weight, stride=2))
    return torch.relu(torch.conv2d(torch.nn.functional.pad(x, (1, 1, 1, 1)), weight))


def test_sizes_stay_symbols(default_rules: tuple[Rule, ...]) -> None:
    """The reference of an op branches on sizes, and the program shares their environment."""
    sizes = ("x=f32[batch:1..4,3,h:64..128:32,w:64..128:32]", "weight=f32[3,3,3,3]")
    program = small_bundle.program(Function(halved), sizes)
    program = rewrite(program, plan(program, default_rules, device="cpu", targets=("onnx",)))
    before = {name: str(symbol) for name, symbol in dim_symbols(program).items()}
    assert TARGETS["onnx"].unsupported(program) is None
    assert {name: str(symbol) for name, symbol in dim_symbols(program).items()} == before


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

"""The graph after capture: one name per op, no regions without effect, no ops of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn

from fuseconv.capture.foreign_ops import grouped_mm
from fuseconv.graph.op_aliases import _NAMES, canonical
from fuseconv.targets import TARGETS, Context

X = "x=f32[batch:1..8,6]"


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(6, 6)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def overloads(name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, one) for one in packet.overloads()] if packet is not None else []


@pytest.mark.parametrize("name", _NAMES)
def test_an_alias_names_an_op_of_the_same_arguments(name: str) -> None:
    found = [canonical(op) for op in overloads(name) if "Tensor" in str(op._schema)]
    renamed = [op for op in found if op._schema.name not in (f"aten::{name}", f"aten::{name}_")]
    assert renamed
    for op in renamed:
        assert canonical(op) is op


def aliases(m: Function, x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone().multiply_(2).absolute_().clip_(0, 1)
    return (
        torch.concat([x, torch.concatenate([x, x])]), x.multiply(2), torch.multiply(x, x), x.subtract(x, alpha=3),
        x.divide(2, rounding_mode="floor"), x.true_divide(3), x.greater(0), x.less_equal(x), x.not_equal(0),
        x.negative(), x.clip(-1, 1), x.clip(min=0.5), x.fix(), x.swapaxes(0, 1), x.swapdims(-1, 0), x.moveaxis(0, 1),
        torch.row_stack([x, x]), x.arctan2(x), torch.special.expit(x), torch.special.softmax(x, -1),
        torch.special.log_softmax(x, 1), torch.special.round(x),
        torch.max(x, x * 2), torch.min(x, x * 2), (x > 0) & (x < 1), (x > 0) | (x < -1), (x > 0) ^ (x < 1), y,
        torch.special.logsumexp(x, -1), torch.linalg.matmul(x, x.mT), torch.special.erf(x),
        torch.special.xlogy(x, x.abs()),
    )  # fmt: skip


def autocast_off(m: Function, x: Tensor) -> Tensor:
    """As rotary embeddings: a part in float32, whatever is around it."""
    with torch.autocast("cpu", enabled=False):
        half, rest = m.layer(x).chunk(2, -1)
        with torch.no_grad():
            angle = half.sin()
    with torch.autocast("cuda", dtype=torch.float16, enabled=False):
        return torch.cat([angle, rest], -1) * 2


def written_in_a_region(m: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x.clone()
        y[:, 0] = 1.0
        return y, x


def branch_in_a_region(m: Function, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def regions(exported: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in exported.graph.nodes if isinstance(node.target, torch._ops.HigherOrderOperator)]


def check(function: Callable[..., Any], target: str, folder: Path) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    module = Function(function).eval()
    program = small_bundle.program(module, (X,))
    run = TARGETS[target].load(folder / TARGETS[target].write(program, folder, Context(folder)), "cpu")
    for rows in (1, 3):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            expected = module(x.clone())
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, value in zip(run(x), expected, strict=True):
            torch.testing.assert_close(found, value, equal_nan=True)
    return program.exported


@pytest.mark.parametrize("target", ["export", "torchscript", "onnx"])
def test_aliases_are_captured_under_one_name(target: str, tmp_path: Path) -> None:
    exported = check(aliases, target, tmp_path)
    called = {
        node.target._schema.name.split("::")[1] for node in exported.graph.nodes if hasattr(node.target, "_schema")
    }
    assert not [name for name in called if name in _NAMES and name not in ("max", "min")]


@pytest.mark.parametrize("target", ["export", "torchscript", "onnx"])
@pytest.mark.parametrize("function", [autocast_off, written_in_a_region], ids=lambda function: function.__name__)
def test_regions_that_change_nothing_are_taken_apart(function: Callable[..., Any], target: str, tmp_path: Path) -> None:
    exported = check(function, target, tmp_path)
    assert not regions(exported)


def test_a_branch_inside_a_region_is_kept(tmp_path: Path) -> None:
    exported = check(branch_in_a_region, "export", tmp_path)
    assert [getattr(node.target, "__name__", "") for node in regions(exported)] == ["cond"]


def test_a_region_in_which_autocast_is_on_stays() -> None:
    def on(m: Function, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.layer(x).float()

    program = small_bundle.program(Function(on), (X,))
    assert "autocast" in (TARGETS["torchscript"].unsupported(program) or "")


@pytest.mark.parametrize("ends", [(2, 2, 5, 7), (0, 0, 0, 7), (7, 7, 7, 7), (1, 2, 3, 4), (0, 0, 0, 0)])
def test_groups_of_rows_have_matrices_of_their_own(ends: tuple[int, ...]) -> None:
    rows, weight = torch.randn(7, 3), torch.randn(4, 3, 5)
    expected = torch.zeros(7, 5)
    for group, (first, last) in enumerate(zip((0, *ends), ends, strict=False)):
        expected[first:last] = rows[first:last] @ weight[group]
    torch.testing.assert_close(grouped_mm(rows, weight, torch.tensor(ends, dtype=torch.int32)), expected)


@pytest.mark.parametrize("target", ["export", "torchscript", "onnx"])
def test_a_mixture_of_experts_of_transformers_needs_no_transformers(target: str, tmp_path: Path) -> None:
    moe = pytest.importorskip("transformers.integrations.moe")

    def experts(m: Function, x: Tensor) -> Tensor:
        weight = m.layer.weight.reshape(3, 6, 2)
        ends = torch.arange(1, 4, dtype=torch.int32) * (x.shape[0] // 3)
        return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)

    assert moe
    exported = check(experts, target, tmp_path)
    namespaces = {
        node.target.namespace for node in exported.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    }
    assert namespaces == {"aten"}

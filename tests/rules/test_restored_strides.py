"""Outputs of a program keep their strides, whatever the strides of the ops that fuseconv inserts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import programs
from torch import Tensor

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.rule import Rule

CONV, CLONE, PERMUTE = "fuseconv.conv_act.default", "aten.clone.default", "aten.permute.default"
TRANSPOSE = "aten.transpose.int"

TABLE: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[str]]] = {
    "a convolution of rows": (
        lambda m, x: F.conv1d(x.transpose(1, 2), m.w, padding=1).transpose(1, 2),
        [TRANSPOSE, CONV, TRANSPOSE, PERMUTE, CLONE, PERMUTE],
    ),
    "and an op behind it": (
        lambda m, x: F.conv1d(x.transpose(1, 2), m.w, padding=1).transpose(1, 2).neg(),
        [TRANSPOSE, CONV, TRANSPOSE, "aten.neg.default", PERMUTE, CLONE, PERMUTE],
    ),
    "a convolution of rows to channels": (
        lambda m, x: F.conv1d(x.transpose(1, 2), m.w, padding=1),
        [TRANSPOSE, CONV, CLONE],
    ),
    "a result in contiguous memory": (
        lambda m, x: F.conv1d(x.transpose(1, 2), m.w, padding=1).transpose(1, 2).contiguous(),
        [TRANSPOSE, CONV, TRANSPOSE, "aten.contiguous.default"],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_outputs_keep_their_strides(name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]) -> None:
    forward, ops = TABLE[name]
    module = programs.Function(forward, {"w": torch.randn(6, 8, 3, dtype=dtype)})
    n, t = torch.export.Dim("n", min=1, max=64), torch.export.Dim("t", min=4, max=64)
    program = programs.capture(module, torch.randn(2, 9, 8, dtype=dtype), dims=({0: n, 1: t},))
    result = rewrite(program, plan(program, default_rules, device="cuda", targets=()))
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert [op for op in called if op != "aten.sym_size.int"] == ops
    torch.testing.assert_close(programs.run(result), programs.run(program), check_stride=True)


def test_an_output_that_is_not_dense_is_a_reason(default_rules: tuple[Rule, ...]) -> None:
    module = programs.Function(
        lambda m, x: F.conv1d(x.transpose(1, 2), m.w, padding=1).transpose(1, 2)[:, ::2], {"w": torch.randn(6, 8, 3)}
    )
    found = plan(programs.capture(module, torch.randn(2, 9, 8)), default_rules, device="cuda", targets=())
    assert [(miss.rule, miss.expected) for miss in found.misses] == [("conv1d-alone", "outputs with unchanged strides")]

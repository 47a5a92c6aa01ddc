"""Strides that change: a view of them becomes a reshape, unless something writes to its memory."""

from __future__ import annotations

from typing import Any

import torch
from support import programs
from support.programs import Function
from torch import Tensor

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.rulebook.rule import Rule


def attended(x: Tensor) -> Tensor:
    """The attention of YOLO11's PSA block, whose keys are on the last axis: [n, 8, 5] as [n, 40]."""
    weights = (x @ x.transpose(-2, -1)).softmax(-1)
    return (x.transpose(-2, -1) @ weights.transpose(-2, -1)).view(-1, 40)


def viewed(_: Any, x: Tensor) -> tuple[Tensor]:
    return (attended(x).sin(),)


def written(_: Any, x: Tensor) -> tuple[Tensor]:
    y = attended(x)
    y[:, 0] = 0
    return (y.sin(),)


def called(function: Any, rules: tuple[Rule, ...]) -> list[str]:
    program = programs.capture(Function(function, {}), torch.randn(2, 5, 8, dtype=torch.float64))
    result = rewrite(program, Plan.from_json(plan(program, rules, device="cpu", targets=()).to_json()))
    torch.testing.assert_close(programs.run(result), programs.run(program))
    return [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]


def test_a_view_becomes_a_reshape(canonical_rules: tuple[Rule, ...]) -> None:
    ops = called(viewed, canonical_rules)
    assert "aten.scaled_dot_product_attention.default" in ops
    assert "aten.reshape.default" in ops
    assert "aten.view.default" not in ops


def test_a_view_that_is_written_stays(canonical_rules: tuple[Rule, ...]) -> None:
    ops = called(written, canonical_rules)
    assert "aten.softmax.int" in ops
    assert "aten.view.default" in ops

"""Attention with more axes becomes attention with batch and heads, which PyTorch's kernels compute."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import programs
from support.programs import Function
from torch import Tensor
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule


def fused(function: Callable[..., Any], rules: Sequence[Rule], *shapes: Sequence[int]) -> Program:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]
    program = programs.capture(Function(lambda _, *given: (function(*given),)), *inputs)
    found = plan(program, rules, device="cpu", targets=())
    result = rewrite(program, Plan.from_json(found.to_json()))
    torch.testing.assert_close(programs.run(result), programs.run(program))
    return result


def attention(program: Program) -> torch.fx.Node:
    calls = program.exported.graph.find_nodes(
        op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default
    )
    (call,) = calls
    return call


def ranks(program: Program) -> list[int]:
    return [node.meta["val"].dim() for node in attention(program).all_input_nodes]


def copies(program: Program) -> int:
    """The number of operands of attention whose axes become one in a copy."""
    merged = (node for node in attention(program).all_input_nodes if op_name(node.target) == "aten.flatten.using_ints")
    return sum(node.meta["val"]._base is None for node in merged)


def windows(x: Tensor, count: int, heads: int) -> Tensor:
    """Returns queries, keys and values [3, batch, heads, windows, tokens, width] of packed ones, as Hiera has them."""
    return x.reshape(x.shape[0], -1, count, 3, heads, 8).permute(3, 0, 4, 2, 1, 5)


@pytest.mark.parametrize("scores", [True, False], ids=["scores", "call"])
@pytest.mark.parametrize(("count", "heads", "copied"), [(4, 1, 0), (1, 2, 0), (4, 2, 3)])
def test_windows_and_heads(
    canonical_rules: tuple[Rule, ...], count: int, heads: int, copied: int, *, scores: bool
) -> None:
    """Where there is one window or one head, nothing is copied."""

    def attend(x: Tensor) -> Tensor:
        q, k, v = windows(x, count, heads).unbind(0)
        o = torch.softmax(q * 0.25 @ k.mT, -1) @ v if scores else F.scaled_dot_product_attention(q, k, v)
        return o.transpose(1, 3).reshape(x.shape[0], -1, heads * 8)

    program = fused(attend, canonical_rules, (3, 5 * count, 3 * heads * 8))
    assert ranks(program) == [4, 4, 4]
    assert copies(program) == copied


def test_axes_that_lie_side_by_side(canonical_rules: tuple[Rule, ...]) -> None:
    """Windows come after the batch in memory, so that both become one axis without a copy."""

    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 8)).permute(3, 0, 1, 4, 2, 5).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape[0], -1, 16)

    program = fused(attend, canonical_rules, (3, 4, 5, 48))
    assert [tuple(node.meta["val"].shape[1:]) for node in attention(program).all_input_nodes] == [(2, 5, 8)] * 3
    assert copies(program) == 0


@pytest.mark.parametrize("mask", [(5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7), (1, 1, 5, 7), (1, 2, 1, 5, 7)])
def test_mask_that_is_the_same_for_the_batch(canonical_rules: tuple[Rule, ...], mask: tuple[int, ...]) -> None:
    hide = torch.randn(mask, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, hide)

    program = fused(attend, canonical_rules, (3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 6))
    assert ranks(program)[:3] == [4, 4, 4]


@pytest.mark.parametrize("mask", [(3, 1, 1, 5, 7), (3, 1, 4, 5, 7), (3, 2, 4, 1, 7)])
def test_mask_of_the_batch(canonical_rules: tuple[Rule, ...], mask: tuple[int, ...]) -> None:
    program = fused(
        F.scaled_dot_product_attention, canonical_rules, (3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 6), mask
    )
    assert ranks(program) == [4, 4, 4, 4]


def test_a_mask_is_not_expanded_along_a_dynamic_size(canonical_rules: tuple[Rule, ...]) -> None:
    hide = torch.randn(4, 1, 5, 7, dtype=torch.float64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, hide)

    program = fused(attend, canonical_rules, (3, 4, 2, 5, 8), (3, 4, 2, 7, 8), (3, 4, 2, 7, 6))
    assert ranks(program) == [4, 4, 4, 4]
    assert attention(program).all_input_nodes[0].meta["val"].shape[1] == 8


@pytest.mark.parametrize(("mask", "rank"), [((2, 5, 7), 4), ((1, 1, 7), 4), ((1, 2, 1, 7), 4), ((5, 7), 2)])
def test_mask_with_three_axes(canonical_rules: tuple[Rule, ...], mask: tuple[int, ...], rank: int) -> None:
    """PyTorch's kernel for CPUs takes masks with two axes or four."""
    hide = torch.randn(mask, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, hide)

    program = fused(attend, canonical_rules, (3, 2, 5, 8), (3, 2, 7, 8), (3, 2, 7, 8))
    assert ranks(program) == [4, 4, 4, rank]


def test_mask_with_three_axes_for_grouped_heads(canonical_rules: tuple[Rule, ...]) -> None:
    hide = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, hide, enable_gqa=True)

    program = fused(attend, canonical_rules, (3, 4, 5, 8), (3, 2, 7, 8), (3, 2, 7, 8))
    assert ranks(program) == [4, 4, 4, 4]


def test_operands_that_are_broadcast_are_left_alone(canonical_rules: tuple[Rule, ...]) -> None:
    program = fused(F.scaled_dot_product_attention, canonical_rules, (3, 2, 4, 5, 8), (3, 1, 4, 7, 8), (3, 1, 4, 7, 6))
    assert ranks(program) == [5, 5, 5]


def test_attention_between_channels_is_left_alone(canonical_rules: tuple[Rule, ...]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v

    inputs = [torch.randn(2, 2, 8, 300) for _ in range(3)]
    program = programs.capture(Function(lambda _, *given: (attend(*given),)), *inputs)
    found = plan(program, canonical_rules, device="cpu", targets=())
    (miss,) = [miss for miss in found.misses if miss.rule == "attention"]
    assert miss.reason == "expected at most 256 columns, or more keys than columns, found 8 keys of 300 columns"

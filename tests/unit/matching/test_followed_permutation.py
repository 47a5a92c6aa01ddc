"""Keys permuted by (0, 2, 3, 1), in attention: followed exactly, where every shape would fit the plain transpose too.

A rule that takes the one for the other is found out, by the check of the rule and by the trial at the match.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.rule import Rule

EVERYWHERE: dict[str, Any] = {"device": "cpu", "targets": ()}
SDPA = "aten.scaled_dot_product_attention.default"
SIZES = {
    # batch, heads, length, width: with heads == length the permuted keys have the shape of the transposed ones
    "heads = length": (1, 4, 4, 8),
    "heads = length = width": (2, 4, 4, 4),
    "all alike": (4, 4, 4, 4),
    "length 1": (3, 1, 1, 8),
    "told apart": (2, 3, 3, 5),
}
ORDERS = {
    "permute": lambda k: k.permute(0, 2, 3, 1),
    "transposes": lambda k: k.transpose(1, 2).transpose(2, 3),
    "last to front": lambda k: k.permute(0, 3, 1, 2).transpose(1, 3).mT,
    "movedim": lambda k: k.movedim(1, -1),
    "einsum of positions": lambda k: torch.einsum("bhkd->bkdh", k),
    "plain": lambda k: k.mT,
}


def attend(order: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor]]:
    return lambda _, q, k, v: ((q @ order(k) / 2).softmax(-1) @ v,)


def drawn(*shape: int) -> tuple[Tensor, ...]:
    return tuple(
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2, 3)
    )


def attentions(program: Program) -> list[Node]:
    return [node for node in program.exported.graph.nodes if op_name(node.target) == SDPA]


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES)
def test_the_keys_are_those_of_the_program(
    size: str, order: str, dynamic: bool, canonical_rules: tuple[Rule, ...]
) -> None:
    inputs = drawn(*SIZES[size])
    dims: tuple[dict[int, Any], ...] | None = None if dynamic and SIZES[size][0] > 1 else tuple({} for _ in inputs)
    program = programs.capture(programs.Function(attend(ORDERS[order])), *inputs, dims=dims)
    found = checked_plan(program, canonical_rules, **EVERYWHERE)
    assert found.rejected == ()
    result = rewrite(program, found)
    assert len(attentions(result)) == 1
    expected = programs.run(program)
    torch.testing.assert_close(programs.run(result), expected)
    assumed = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], scale=0.5)
    is_other = order != "plain" and SIZES[size][2] > 1
    assert ((expected[0] - assumed).abs().max() > 0.1).item() is is_other


def test_lengths_that_grow_equal_to_heads_change_nothing(canonical_rules: tuple[Rule, ...]) -> None:
    """The length is dynamic: 4 while it is captured and as many as there are heads when it runs, or the other way."""
    length = torch.export.Dim("length", min=2, max=64)
    q, k, v = (drawn(2, 4, 6, 8)[at] for at in range(3))
    by_position = (q, k.transpose(1, 2).contiguous(), v)
    program = programs.capture(
        programs.Function(attend(ORDERS["permute"])), *by_position, dims=({2: length}, {1: length}, {2: length})
    )
    result = rewrite(program, checked_plan(program, canonical_rules, **EVERYWHERE))
    assert len(attentions(result)) == 1
    for size in (2, 4, 6, 8):
        inputs = (drawn(2, 4, size, 8)[0], drawn(2, size, 4, 8)[1], drawn(2, 4, size, 8)[2])
        torch.testing.assert_close(programs.run(result, inputs), programs.run(program, inputs))
        right = F.scaled_dot_product_attention(inputs[0], inputs[1].transpose(1, 2), inputs[2], scale=0.5)
        torch.testing.assert_close(programs.run(result, inputs)[0], right)


LINES = [
    "t = aten.permute.default(k, [0, 2, 3, 1])",
    "m = aten.matmul.default(q, t)",
    "p = aten.softmax.int(m, -1)",
    "o = aten.matmul.default(p, v)",
]
TRAPPED = {
    "name": "trapped",
    "stage": "fuse",
    "doc": "Takes permuted keys for transposed ones: every shape fits.",
    "match": LINES,
    "where": ["same_shape(q, k)", "same_shape(k, v)"],
    "replace": ["o = aten.scaled_dot_product_attention.default(q, k, v, scale=1.0)"],
    "examples": {
        "hit": [["q: f64[n, 4, 4, 8]", "k: f64[n, 4, 4, 8]", "v: f64[n, 4, 4, 8]", *LINES, "return o"]],
        "miss": [
            {
                "reason": "dims of aten.permute.default",
                "program": [
                    "q: f64[n, 4, 4, 8]",
                    "k: f64[n, 4, 4, 8]",
                    "v: f64[n, 4, 4, 8]",
                    "t = aten.permute.default(k, [0, 1, 3, 2])",
                    *LINES[1:],
                    "return o",
                ],
            }
        ],
    },
}


def test_a_rule_that_falls_for_it_is_refused_with_a_counter_example() -> None:
    rows = {row.check: row for row in check_rules([Rule.model_validate(TRAPPED)])}
    assert not rows["hit 0"].ok
    assert "differs at [" in rows["hit 0"].detail
    assert "k: f64[" in rows["hit 0"].detail


@pytest.mark.parametrize("size", ["heads = length", "all alike"])
def test_a_site_of_such_a_rule_is_left_alone_with_the_numbers(size: str) -> None:
    inputs = drawn(*SIZES[size])
    program = programs.capture(
        programs.Function(lambda _, q, k, v: ((q @ k.permute(0, 2, 3, 1)).softmax(-1) @ v,)),
        *inputs,
        dims=({}, {}, {}),
    )
    found = checked_plan(program, [Rule.model_validate(TRAPPED)], **EVERYWHERE)
    assert found.steps == ()
    (miss,) = found.rejected
    assert "the numerical test gives a different result: the result differs at [" in miss.reason
    assert "captured values" in miss.reason

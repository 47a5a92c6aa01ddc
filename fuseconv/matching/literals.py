"""Compares a literal of a rule with a literal in a graph: integers exactly, floats with a tolerance.

Models write constants with few digits, such as 0.7979 for sqrt(2 / pi). A float within `TOLERANCE` of the rule's float
matches. If the difference exceeds the rounding error of the dtype, the replacement changes the result slightly. The
match records such a difference, and its numerical test takes it into account.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES
from fuseconv.rulebook.rule_text import Literal

TOLERANCE = 1e-3
"""The maximum relative difference at which a float in a graph matches a float of a rule: 0.7071 matches 1/sqrt(2). An
integer of a rule, and a float that is a multiple of 1/64, such as 0.5, match only an equal number."""


def same(one: Any, other: Any, rank: int | None = None) -> bool:
    """Returns whether two arguments are the same node or equal literals. 2 equals 2.0; 1 does not equal True.

    Args:
        one: an argument: a node, a literal, or a list of these.
        other: the argument to compare it with.
        rank: if both are axes of tensors of one rank, that rank, so that -1 equals rank - 1. None for other arguments.
    """
    if isinstance(one, Node) or isinstance(other, Node):
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b, rank) for a, b in zip(one, other, strict=True))
    if rank and type(one) is type(other) is int:
        return one % rank == other % rank
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def same_literal(literal: Literal, actual: Any, rank: int | None) -> bool:
    """Returns whether an argument equals a literal of a rule.

    Args:
        literal: the literal that the rule expects.
        actual: the argument of the graph node.
        rank: if the literal is an axis, the rank of the tensor, so that -1 equals rank - 1. None for other literals.
    """
    expected = literal.value
    if literal.is_dtype:
        return isinstance(actual, torch.dtype) and str(actual) == DTYPES[str(expected)]
    if expected is None or isinstance(expected, bool | str) or isinstance(actual, bool):
        return type(actual) is type(expected) and bool(actual == expected)
    if not isinstance(actual, int | float):
        return False
    if rank and isinstance(expected, int) and isinstance(actual, int):
        return expected % rank == actual % rank
    if _is_exact(expected):
        return actual == expected
    return abs(actual - expected) <= TOLERANCE * abs(expected)


def _is_exact(expected: float) -> bool:
    return isinstance(expected, int) or (expected * 64).is_integer() or expected in (float("inf"), float("-inf"))


def differs(literal: Literal, actual: Any, dtype: torch.dtype | None) -> bool:
    """Returns whether a float in the graph differs from the rule's float by more than the rounding error of a dtype.

    The dtype is float64 for float64 tensors and float32 for all others, because ops compute with scalars in at least
    float32.

    Args:
        literal: the literal that the rule expects.
        actual: the argument of the graph node.
        dtype: the dtype of the op's result.
    """
    expected = literal.value
    if isinstance(expected, bool | str | None) or literal.is_dtype or _is_exact(expected):
        return False
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return bool(abs(actual - expected) > torch.finfo(wide).eps * abs(expected))

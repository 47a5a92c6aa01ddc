"""When a literal of a rule is the one that a graph has: an integer exactly, a float as far as it is written out.

People write constants with a few digits: 0.7979 for the root of 2 / pi. Within `TOLERANCE` such a number is taken for
the rule's. Where the two differ by more than the dtype rounds, the replacement computes something else, by little; the
match says so, and the site is tried by the error of its result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.spec import DTYPES
from fuseconv.rulebook.rule_text import Literal

TOLERANCE = 1e-3
"""How far a float of a graph may be from a float of a rule, relative: 0.7071 is 1/sqrt(2). A rule's float that is a
multiple of 1/64, as 0.5, and every integer, is meant exactly."""


def same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same node, or equal literals of one kind; 2 is 2.0 and is not True."""
    if isinstance(one, Node) or isinstance(other, Node):
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def same_literal(literal: Literal, actual: Any, rank: int | None) -> bool:
    """Whether an argument is the literal that a rule writes.

    Args:
        literal: the rule's.
        actual: the argument.
        rank: where it counts axes, how many there are.
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
    """Whether a float that is taken for a rule's differs from it by more than a dtype rounds.

    Numbers are computed with in float32 at least, whatever the tensors are.

    Args:
        literal: the rule's.
        actual: the argument.
        dtype: that of the op's result.
    """
    expected = literal.value
    if isinstance(expected, bool | str | None) or literal.is_dtype or _is_exact(expected):
        return False
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return bool(abs(actual - expected) > torch.finfo(wide).eps * abs(expected))

"""Proves properties of symbolic sizes for the whole declared range: equal shapes, row-major strides, comparisons.

A proof never adds a guard to the program. Each function returns False if it finds no proof. torch is imported inside
the functions, so that rule files can be read without torch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from fuseconv.graph.floor_division import same_quotients


def same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Returns whether two shapes are provably equal for all values of their symbolic sizes."""
    return len(left) == len(right) and all(map(same_size, left, right))


def same_size(one: Any, other: Any) -> bool:
    """Returns whether two sizes are provably equal for all values of their symbols."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    sides = [side.node.expr if hasattr(side, "node") else side for side in (one, other)]
    # The first check is faster than torch's solver, and the last one knows floor divisions that the solver does not.
    return bool(sides[0] == sides[1]) or statically_known_true(one == other) or same_quotients(*sides)


def row_major(fake: Any) -> bool:
    """Returns whether a tensor is provably contiguous: dense and row-major. Axes of size 1 may have any stride."""
    return are_row_major(fake.shape, fake.stride())


def are_row_major(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether these are provably the sizes and strides of a contiguous tensor."""
    expected: Any = 1
    for length, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not (same_size(length, 1) or same_size(stride, expected)):
            return False
        expected = expected * length
    return True


def memory_order(fake: Any) -> list[int] | None:
    """Returns the order of the axes in memory, outermost first, if a tensor is provably dense. Otherwise, returns None.

    `permute` with this order makes the tensor contiguous. The order of a contiguous tensor is `[0, 1, ...]`.
    """
    order, rest, expected = list[int](), list(range(fake.dim())), 1
    while rest:
        inner = (
            axis for axis in reversed(rest) if same_size(fake.shape[axis], 1) or same_size(fake.stride(axis), expected)
        )
        if (axis := next(inner, None)) is None:
            return None
        rest.remove(axis)
        order.insert(0, axis)
        expected = expected * fake.shape[axis]
    return order


def compare(left: Any, comparison: str, right: Any, ranges: Mapping[Any, Any]) -> bool:
    """Returns whether a comparison of `left` with `right` provably holds for all sizes.

    Args:
        left: a number, a string or a symbolic size.
        comparison: the operator, one of rule_text.COMPARISONS.
        right: a number, a string or a symbolic size. A list of these if the operator is `in`.
        ranges: maps each symbolic size to its declared range. `!=` and the order operators use these ranges, because
            torch's own ranges assume that every size is at least 2.
    """
    if comparison == "in":
        return any(compare(left, "==", member, ranges) for member in right)
    if comparison == "==":
        return same_size(left, right)
    if comparison == "!=":
        return _holds(left != right, ranges)
    if any(isinstance(side, str | None) for side in (left, right)):
        return False
    orders = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    return _holds(orders[comparison](left, right), ranges)


def _holds(outcome: Any, ranges: Mapping[Any, Any]) -> bool:
    """Returns whether a bool is true, or a SymBool is true for all sizes in the ranges."""
    import torch
    from torch.utils._sympy.value_ranges import bound_sympy

    if not isinstance(outcome, torch.SymBool):
        return bool(outcome)
    bounds = bound_sympy(outcome.node.expr, dict(ranges))
    return bool(bounds.is_singleton() and bounds.lower)

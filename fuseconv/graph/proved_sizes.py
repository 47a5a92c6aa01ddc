"""Proves properties for all sizes in the declared ranges: equal shapes, row-major strides, comparisons.

A proof never adds a guard. torch is imported inside the functions, so that rule files can be read without torch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any


def same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Returns whether two shapes are equal for all values of their symbolic sizes."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return len(left) == len(right) and all(
        _is_one_expression(one, other) or statically_known_true(one == other)
        for one, other in zip(left, right, strict=True)
    )


def _is_one_expression(one: Any, other: Any) -> bool:
    """Returns whether two symbolic sizes are the same expression: a fast check before the slow solver."""
    symbolic = hasattr(one, "node") and hasattr(other, "node")
    return symbolic and bool(one.node.expr == other.node.expr)


def row_major(fake: Any) -> bool:
    """Returns whether the strides of a tensor are provably dense and row-major. Axes of size 1 may have any stride."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    expected: Any = 1
    for length, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if not (statically_known_true(length == 1) or statically_known_true(stride == expected)):
            return False
        expected = expected * length
    return True


def compare(left: Any, comparison: str, right: Any, ranges: Mapping[Any, Any]) -> bool:
    """Returns whether `left comparison right` is proved.

    Args:
        left: a number, text or symbolic size.
        comparison: one of rule_text.COMPARISONS.
        right: a number, text or symbolic size, or a list of these for `in`.
        ranges: maps each symbolic size to its declared range. These ranges decide comparisons by order, because
            torch.export assumes that every size is at least 2.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if comparison == "in":
        return any(compare(left, "==", member, ranges) for member in right)
    if comparison == "==":
        return bool(statically_known_true(left == right))
    if comparison == "!=":
        return _holds(left != right, ranges)
    if any(isinstance(side, str | None) for side in (left, right)):
        return False
    orders = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    return _holds(orders[comparison](left, right), ranges)


def _holds(outcome: Any, ranges: Mapping[Any, Any]) -> bool:
    import torch
    from torch.utils._sympy.value_ranges import bound_sympy

    if not isinstance(outcome, torch.SymBool):
        return bool(outcome)
    bounds = bound_sympy(outcome.node.expr, dict(ranges))
    return bool(bounds.is_singleton() and bounds.lower)

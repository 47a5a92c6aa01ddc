"""Formulas as represented in a dtype: integers overflow and floats round, so a formula is valid only within bounds.

A formula is a mathematical expression of indices; a program computes in a dtype. The two agree if the dtype represents
every value exactly, at all indices and all declared sizes. A number that does not depend on an index is rounded to the
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from fuseconv.graph.formula import (
    Choice,
    Formula,
    UnknownError,
    axis,
    number,
)

GREATEST_SIZE = 2**48
"""The maximum number of elements along an axis, whatever the axis's range says: no address space holds more."""


def bounds(value: sympy.Expr, sizes: Sequence[sympy.Expr], ranges: Mapping[Any, Any]) -> ValueRanges[Any]:
    """Returns the minimum and the maximum of a formula over all indices of a tensor and all sizes.

    Args:
        value: the formula.
        sizes: the shape of the tensor, as formulas.
        ranges: maps each symbolic size to its declared range.

    Raises:
        UnknownError: the formula is not linear in the indices.
    """
    least, most = sympy.expand(value), sympy.expand(value)
    for at, size in enumerate(reversed(sizes), 1):
        index, last = axis(at), size - 1
        slope = least.coeff(index, 1)
        if not slope.is_number or sympy.expand(least - slope * index).has(index):
            raise UnknownError(f"{value} is not linear in its indices")
        least = sympy.expand(least.subs(index, 0 if slope >= 0 else last))
        most = sympy.expand(most.subs(index, last if slope >= 0 else 0))
    symbols = {symbol: ranges.get(symbol, ValueRanges(0, int_oo)) for symbol in least.free_symbols | most.free_symbols}
    known = {symbol: ValueRanges(found.lower, min(found.upper, GREATEST_SIZE)) for symbol, found in symbols.items()}
    return ValueRanges(bound_sympy(least, known).lower, bound_sympy(most, known).upper)


def held(formula: Formula, dtype: torch.dtype, bounds_of: Callable[[sympy.Expr], ValueRanges[Any]]) -> Formula:
    """Returns a formula as represented in a dtype.

    Args:
        formula: the mathematical value of the elements. A condition is 0 or 1, which every dtype represents.
        dtype: the dtype of the computation.
        bounds_of: returns the bounds of a formula over all indices and all sizes.

    Raises:
        UnknownError: a value of the formula overflows or is rounded in the dtype.
    """
    if isinstance(formula, Choice):
        yes, no = (_held(value, dtype, bounds_of) for value in (formula.yes, formula.no))
        return Choice(formula.condition, yes, no)
    return _held(formula, dtype, bounds_of) if isinstance(formula, sympy.Expr) and dtype != torch.bool else formula


def _held(value: sympy.Expr, dtype: torch.dtype, bounds_of: Callable[[sympy.Expr], ValueRanges[Any]]) -> sympy.Expr:
    if value.is_number:
        return rounded(value, dtype)
    found, (low, high) = bounds_of(value), exact_range(dtype)
    if not value.is_integer or found.lower < low or found.upper > high:
        raise UnknownError(f"{value}, from {found.lower} to {found.upper}, which {dtype} cannot represent exactly")
    return value


def rounded(value: sympy.Expr, dtype: torch.dtype) -> sympy.Expr:
    """Returns a number rounded to a dtype.

    Raises:
        UnknownError: the number is out of the range of an integer dtype.
    """
    if not dtype.is_floating_point:
        low, high = exact_range(dtype)
        if not value.is_integer or not low <= value <= high:
            raise UnknownError(f"{value}, which {dtype} cannot represent")
        return value
    if value.is_integer and abs(value) <= exact_range(dtype)[1]:
        return value
    return number(float(torch.tensor(float(value), dtype=torch.float64).to(dtype)))


def exact_range(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the largest interval of integers that a dtype represents exactly.

    Raises:
        UnknownError: the dtype is complex.
    """
    if dtype.is_complex:
        raise UnknownError(f"numbers of {dtype}")
    if dtype.is_floating_point:
        greatest = int(2 / torch.finfo(dtype).eps)
        return -greatest, greatest
    limits = torch.iinfo(dtype)
    return limits.min, limits.max

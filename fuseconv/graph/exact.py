"""Checks that a dtype represents the values of a formula exactly.

A formula is a mathematical expression of indices, but a program computes in a dtype in which integers overflow and
floating-point numbers are rounded. The two agree if the dtype represents the formula's value exactly at all indices and
all declared sizes. If the formula is a constant number, it is rounded to the dtype, as the program rounds it.
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
"""The assumed maximum number of elements along an axis. It limits declared ranges, because no address space can hold
a larger tensor."""


def bounds(value: sympy.Expr, sizes: Sequence[sympy.Expr], ranges: Mapping[Any, Any]) -> ValueRanges[Any]:
    """Returns bounds of a formula that hold at all indices of a tensor and for all declared sizes.

    Args:
        value: the formula to bound, a sympy expression.
        sizes: the shape of the tensor, with each size as a sympy expression.
        ranges: maps each symbolic size to its declared range. A size without a range is at least 0.

    Raises:
        UnknownError: the formula is not linear in the indices.
    """
    least, most = sympy.expand(value), sympy.expand(value)
    for at, size in enumerate(reversed(sizes), 1):
        index, last = axis(at), size - 1
        slope = least.coeff(index, 1)
        if not slope.is_number or sympy.expand(least - slope * index).has(index):
            raise UnknownError(f"{value}, which is not linear in the indices")
        least = sympy.expand(least.subs(index, 0 if slope >= 0 else last))
        most = sympy.expand(most.subs(index, last if slope >= 0 else 0))
    symbols = {symbol: ranges.get(symbol, ValueRanges(0, int_oo)) for symbol in least.free_symbols | most.free_symbols}
    known = {symbol: ValueRanges(found.lower, min(found.upper, GREATEST_SIZE)) for symbol, found in symbols.items()}
    return ValueRanges(bound_sympy(least, known).lower, bound_sympy(most, known).upper)


def held(formula: Formula, dtype: torch.dtype, bounds_of: Callable[[sympy.Expr], ValueRanges[Any]]) -> Formula:
    """Returns the formula of the same elements after they are stored in a dtype.

    A number is rounded to the dtype. Any other formula is returned unchanged if the dtype represents all its values
    exactly.

    Args:
        formula: the mathematical value of the elements. A condition is returned unchanged, because its values, 0 and 1,
            are exact in every dtype.
        dtype: the dtype of the computation.
        bounds_of: a function that returns the bounds of a formula over all indices and all declared sizes.

    Raises:
        UnknownError: the dtype cannot represent a value of the formula exactly, or a number is out of the range of an
            integer dtype.
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
        raise UnknownError(
            f"values of {value} from {found.lower} to {found.upper}, which {dtype} cannot represent exactly"
        )
    return value


def rounded(value: sympy.Expr, dtype: torch.dtype) -> sympy.Expr:
    """Returns a number rounded to a dtype.

    Raises:
        UnknownError: the number is out of the range of an integer dtype.
    """
    if not dtype.is_floating_point:
        low, high = exact_range(dtype)
        if not value.is_integer or not low <= value <= high:
            raise UnknownError(f"the number {value}, which {dtype} cannot represent")
        return value
    if value.is_integer and abs(value) <= exact_range(dtype)[1]:
        return value
    return number(float(torch.tensor(float(value), dtype=torch.float64).to(dtype)))


def exact_range(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the ends of the largest interval of integers around 0 in which a dtype represents every integer exactly.

    Raises:
        UnknownError: the dtype is complex.
    """
    if dtype.is_complex:
        raise UnknownError(f"elements of the complex dtype {dtype}")
    if dtype.is_floating_point:
        greatest = int(2 / torch.finfo(dtype).eps)
        return -greatest, greatest
    limits = torch.iinfo(dtype)
    return limits.min, limits.max

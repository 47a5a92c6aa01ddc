"""Proves that a guard of torch.export on sizes holds for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

Ranges = Mapping[sympy.Symbol, ValueRanges[Any]]

_TRUE = ValueRanges(sympy.true, sympy.true)

_HOLDS: Mapping[type[sympy.Basic], Callable[[ValueRanges[Any]], bool]] = {
    sympy.StrictLessThan: lambda difference: difference.upper < 0,
    sympy.LessThan: lambda difference: difference.upper <= 0,
    sympy.StrictGreaterThan: lambda difference: difference.lower > 0,
    sympy.GreaterThan: lambda difference: difference.lower >= 0,
    sympy.Equality: lambda difference: difference.lower == difference.upper == 0,
    sympy.Unequality: lambda difference: difference.lower > 0 or difference.upper < 0,
}
"""Maps each comparison to whether it holds, given the bounds of its left side minus its right side."""


def always(guard: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether a guard provably holds for all values of its symbols in their ranges.

    Before the bounds of the guard are computed, it is simplified: `x mod m` becomes x if 0 <= x < m always holds, and a
    minimum or maximum becomes the operand that always decides it. The sides of a comparison are subtracted, so that
    symbols on both sides cancel.
    """

    def reduced(remainder: Any) -> Any:
        number, modulus = (bound_sympy(part, dict(ranges)) for part in remainder.args)
        return remainder.args[0] if number.lower >= 0 and number.upper < modulus.lower else remainder

    def chosen(extreme: Any) -> Any:
        sign = 1 if isinstance(extreme, Min) else -1
        for part in extreme.args:
            if all(_difference(sign * part, sign * other, ranges).upper <= 0 for other in extreme.args):
                return part
        return extreme

    settled = guard.replace(lambda part: isinstance(part, (Mod, PythonMod)), reduced)
    settled = settled.replace(lambda part: isinstance(part, (Min, Max)), chosen)
    if settled == sympy.true or bound_sympy(settled, dict(ranges)) == _TRUE:
        return True
    holds = _HOLDS.get(type(settled))
    return holds is not None and bool(holds(_difference(*settled.args, ranges)))


def _difference(left: Any, right: Any, ranges: Ranges) -> ValueRanges[Any]:
    """Returns bounds of a multiple of `left - right`, by a positive factor.

    The difference is made linear first: `x // m`, for a positive number m, is (x - r) / m for a remainder r from 0 to
    m - 1. Equal quotients have the same remainder.
    """
    known = dict(ranges)
    remainders: dict[Any, sympy.Dummy] = {}

    def exact(quotient: Any) -> Any:
        number, divisor = quotient.args
        if not (divisor.is_Integer and divisor > 0):
            return quotient
        remainder = remainders.setdefault(quotient, sympy.Dummy("r", integer=True, nonnegative=True))
        known[remainder] = ValueRanges(0, divisor - 1)
        return (number - remainder) / divisor

    linear = sympy.expand((left - right).replace(lambda part: isinstance(part, FloorDiv), exact))
    factors = [factor.q for factor in linear.as_coefficients_dict().values() if factor.is_Rational]
    return bound_sympy(sympy.expand(linear * sympy.ilcm(1, *factors)), known)

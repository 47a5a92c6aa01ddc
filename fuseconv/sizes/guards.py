"""Proves that a guard of torch.export on sizes holds for all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

Ranges = Mapping[sympy.Symbol, ValueRanges[Any]]

ENUMERATED = 1 << 15
"""The maximum number of combinations of sizes that are checked one by one if a guard cannot be decided symbolically."""

FARTHEST = 1 << 31
"""Sizes from here on are not checked one by one."""

_TRUE = ValueRanges(sympy.true, sympy.true)

_QUOTIENTS = (FloorDiv, Mod, PythonMod)

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
    symbols on both sides cancel. If that proves nothing, and the ranges are small, all sizes are checked.

    A guard that divides by zero at some sizes does not hold there. If a divisor may be zero or negative, a guard is
    only checked size by size, because torch writes `x // y // z` as `x // (y * z)`, which is wrong for a negative z. A
    guard with a symbol that has no range or no lower bound, or with a power whose exponent is not a positive number, is
    not proved.
    """
    bounded = all(symbol in ranges and ranges[symbol].lower > -int_oo for symbol in guard.free_symbols)
    if not bounded or not all(power.exp.is_Integer and power.exp > 0 for power in guard.atoms(sympy.Pow)):
        return False
    divisors = (quotient.args[1] for quotient in guard.atoms(*_QUOTIENTS))
    if any(bound_sympy(divisor, dict(ranges)).lower <= 0 for divisor in divisors):
        return _holds_at_each(guard, ranges)

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
    if holds is not None:
        left, right = settled.args
        if holds(_difference(left, right, ranges)):
            return True
    return _holds_at_each(guard, ranges)


def _holds_at_each(guard: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether a guard holds at each combination of sizes. False if there are more than `ENUMERATED`.

    False as well if the guard contains a fraction or an unknown function, which Python does not compute exactly.
    """
    symbols = sorted(guard.free_symbols, key=str)
    known = all(isinstance(part, _QUOTIENTS) for part in guard.atoms(sympy.Function))
    exact = all(number.is_Integer for number in guard.atoms(sympy.Number))
    if not (known and exact and symbols and all(ranges[symbol].is_int for symbol in symbols)):
        return False
    if not all(ranges[symbol].upper < FARTHEST for symbol in symbols):
        return False
    every = [range(int(ranges[symbol].lower), int(ranges[symbol].upper) + 1) for symbol in symbols]
    if math.prod(map(len, every)) > ENUMERATED:
        return False
    holds = sympy.lambdify(symbols, guard, "math", printer=PythonPrinter)
    try:
        return all(holds(*sizes) for sizes in product(*every))
    except ZeroDivisionError:
        return False


def _difference(left: Any, right: Any, ranges: Ranges) -> ValueRanges[Any]:
    """Returns bounds of a multiple of `left - right`, by a positive factor.

    The difference is made linear first: `x // m`, for a positive number m, is (x - r) / m for a remainder r from 0 to
    m - 1. Equal quotients have the same remainder. A difference with other quotients, or with quotients in a remainder,
    a minimum or a maximum, stays as it is.
    """
    known = dict(ranges)
    remainders: dict[Any, sympy.Dummy] = {}

    def exact(quotient: Any) -> Any:
        number, divisor = quotient.args
        remainder = remainders.setdefault(quotient, sympy.Dummy("r", integer=True, nonnegative=True))
        known[remainder] = ValueRanges(0, divisor - 1)
        return (number - remainder) / divisor

    difference = left - right
    fixed = all(quotient.args[1].is_Integer and quotient.args[1] > 0 for quotient in difference.atoms(FloorDiv))
    if fixed and not any(part.has(FloorDiv) for part in difference.atoms(Mod, PythonMod, Min, Max)):
        difference = difference.replace(lambda part: isinstance(part, FloorDiv), exact)
    linear = sympy.expand(difference)
    factors = [factor.q for factor in linear.as_coefficients_dict().values() if factor.is_Rational]
    return bound_sympy(sympy.expand(linear * sympy.ilcm(1, *factors)), known)

"""Proves that a guard of torch.export on sizes holds for all sizes, or finds the few sizes at which it does not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce, wraps
from itertools import islice, product
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges, bound_sympy

from fuseconv.graph.floor_division import normal_form

Ranges = Mapping[sympy.Symbol, ValueRanges[Any]]

ENUMERATED = 1 << 15
"""The maximum number of combinations of sizes that are checked one by one if a guard cannot be decided symbolically."""

FARTHEST = 1 << 31
"""Sizes from here on are not checked one by one."""

PARTS = 64
"""The maximum number of parts into which the ranges of sizes are divided to find the sizes at which a guard fails."""

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

    Before the bounds of the guard are computed, it is simplified: for `x = q * m + r`, `x mod m` becomes r and `x // m`
    becomes q if 0 <= r < m always holds, and a minimum or maximum becomes the operand that always decides it. The sides
    of a comparison are subtracted, so that symbols on both sides cancel. If that proves nothing, and the ranges are
    small, all sizes are checked.

    A guard that divides by zero at some sizes does not hold there. If a divisor may be zero or negative, a guard is
    only checked size by size, because torch writes `x // y // z` as `x // (y * z)`, which is wrong for a negative z. A
    guard with a symbol that has no range or no lower bound, or with a power whose exponent is not a positive number, is
    not proved.
    """
    return _is_decided(guard, ranges) or _fails_at(guard, ranges, 0) == []


def _is_decided(guard: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether the bounds of a guard prove that it holds."""
    if not _is_bounded(guard, ranges):
        return False
    divisors = (quotient.args[1] for quotient in guard.atoms(*_QUOTIENTS))
    if any(_bounds(divisor, ranges).lower <= 0 for divisor in divisors):
        return False
    if isinstance(guard, sympy.Or):
        return any(_is_decided(part, ranges) for part in guard.args)

    def reduced(remainder: Any) -> Any:
        divided = _divided_out(remainder.args[0], remainder.args[1], ranges)
        return remainder if divided is None else divided[1]

    def quotient(floored: Any) -> Any:
        divided = _divided_out(floored.args[0], floored.args[1], ranges)
        return floored if divided is None else divided[0]

    def chosen(extreme: Any) -> Any:
        sign = 1 if isinstance(extreme, Min) else -1
        for part in extreme.args:
            if all(_difference(sign * part, sign * other, ranges).upper <= 0 for other in extreme.args):
                return part
        return extreme

    settled = guard.replace(lambda part: isinstance(part, (Mod, PythonMod)), reduced)
    settled = settled.replace(lambda part: isinstance(part, FloorDiv), quotient)
    settled = settled.replace(lambda part: isinstance(part, (Min, Max)), chosen)
    if settled == sympy.true or bound_sympy(settled, dict(ranges)) == _TRUE:
        return True
    holds = _HOLDS.get(type(settled))
    if holds is None:
        return False
    left, right = settled.args
    return any(map(holds, _differences(left, right, ranges)))


def _divided_out(number: Any, divisor: Any, ranges: Ranges) -> tuple[Any, Any] | None:
    """Returns the quotient and the remainder of two sizes if they are the same expressions at all sizes, else None.

    For example, `(5 * n - 1) // n` is 4 and the remainder is n - 1.
    """
    candidates = [(sympy.S.Zero, number)]
    if divisor.is_Symbol and number.is_polynomial(divisor):
        quotient, rest = sympy.div(number, divisor, divisor)
        candidates += [(quotient, rest), (quotient - 1, rest + divisor)]
    for quotient, rest in candidates:
        if _bounds(rest, ranges).lower >= 0 and any(one.upper < 0 for one in _differences(rest, divisor, ranges)):
            return quotient, rest
    return None


def _is_bounded(guard: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether all symbols of a guard have ranges with a lower bound, and all exponents are positive numbers."""
    bounded = all(symbol in ranges and ranges[symbol].lower > -int_oo for symbol in guard.free_symbols)
    return bounded and all(power.exp.is_Integer and power.exp > 0 for power in guard.atoms(sympy.Pow))


def exceptions(guard: sympy.Basic, ranges: Ranges, most: int) -> list[dict[sympy.Symbol, int]] | None:
    """Returns all combinations of sizes at which a guard fails, or None if these are more than `most`, or unknown.

    The ranges are divided until the guard is proved for a part, or the sizes in the part are few. These are checked one
    by one. The combinations are unknown if that takes more than `PARTS` parts.
    """
    parts, found = [dict(ranges)], list[dict[sympy.Symbol, int]]()
    for _ in range(PARTS):
        part = parts.pop()
        if not _is_decided(guard, part):
            failing = _fails_at(guard, part, most)
            if failing is not None:
                found += failing
            elif (divided := _divided(guard, part)) is None:
                return None
            else:
                parts += divided
        if len(found) > most:
            return None
        if not parts:
            return sorted(found, key=lambda sizes: [*sizes.values()])
    return None


def _divided(guard: sympy.Basic, ranges: Ranges) -> list[dict[sympy.Symbol, ValueRanges[Any]]] | None:
    """Divides the range of a guard's symbol that begins lowest near its lower end, and returns the two combinations.

    Guards fail at small sizes more often than at large ones. Returns None if the sizes are few enough to be checked one
    by one, or have no range of integers.
    """
    if not _is_bounded(guard, ranges) or not all(ranges[symbol].is_int for symbol in guard.free_symbols):
        return None
    if _count(guard, ranges) <= ENUMERATED:
        return None
    several = [symbol for symbol in guard.free_symbols if ranges[symbol].lower < ranges[symbol].upper]
    symbol = min(several, key=lambda one: (ranges[one].lower, -min(ranges[one].upper, FARTHEST), str(one)))
    lower, upper = ranges[symbol].lower, ranges[symbol].upper
    middle = min(lower + math.isqrt(int(min(upper, FARTHEST) - lower)), upper - 1) if lower < FARTHEST else 2 * lower
    return [{**ranges, symbol: part} for part in (ValueRanges(middle + 1, upper), ValueRanges(lower, middle))]


def _count(guard: sympy.Basic, ranges: Ranges) -> Any:
    return math.prod(ranges[symbol].upper - ranges[symbol].lower + 1 for symbol in guard.free_symbols)


def holds_within(guard: sympy.Basic, ranges: Ranges) -> range | None:
    """Returns the sizes at which a guard on one size holds, if these are all multiples of a number within a range.

    Returns None otherwise, or if the sizes at which it holds and those at which it fails are both many.
    """
    if len(guard.free_symbols) != 1:
        return None
    (symbol,) = guard.free_symbols
    if (holding := exceptions(sympy.Not(guard), ranges, ENUMERATED)) is not None:
        kept = [sizes[symbol] for sizes in holding]
        step = math.gcd(*kept) if len(kept) > 1 else 1
        return range(kept[0], kept[-1] + 1, step) if kept and kept == [*range(kept[0], kept[-1] + 1, step)] else None
    if (failing := exceptions(guard, ranges, ENUMERATED)) is not None:
        low, upper = int(ranges[symbol].lower), ranges[symbol].upper
        first = low + len(failing)
        if [sizes[symbol] for sizes in failing] == [*range(low, first)]:
            return range(first, (int(upper) if upper < FARTHEST else sys.maxsize) + 1)
    return None


def _fails_at(guard: sympy.Basic, ranges: Ranges, most: int) -> list[dict[sympy.Symbol, int]] | None:
    """Returns the sizes at which a guard does not hold, each combination of sizes checked one by one.

    Returns None if there are more than `most`, if there are more than `ENUMERATED` combinations to check, or if the
    guard contains a fraction or an unknown function, which Python does not compute exactly.
    """
    symbols = sorted(guard.free_symbols, key=str)
    known = all(isinstance(part, _QUOTIENTS) for part in guard.atoms(sympy.Function))
    exact = all(number.is_Integer for number in guard.atoms(sympy.Number))
    if not (known and exact and symbols and _is_bounded(guard, ranges)):
        return None
    if not all(ranges[symbol].is_int and ranges[symbol].upper < FARTHEST for symbol in symbols):
        return None
    if _count(guard, ranges) > ENUMERATED:
        return None
    holds = sympy.lambdify(symbols, guard, "math", printer=PythonPrinter)
    every = product(*(range(int(ranges[symbol].lower), int(ranges[symbol].upper) + 1) for symbol in symbols))
    failing = (sizes for sizes in every if not _holds(holds, sizes))
    found = [dict(zip(symbols, sizes, strict=True)) for sizes in islice(failing, most + 1)]
    return found if len(found) <= most else None


def _holds(holds: Callable[..., Any], sizes: tuple[int, ...]) -> bool:
    try:
        return bool(holds(*sizes))
    except ZeroDivisionError:
        return False


def _differences(left: Any, right: Any, ranges: Ranges) -> Iterator[ValueRanges[Any]]:
    """Yields bounds of `left - right`, each of them found in another way."""
    yield _difference(left, right, ranges)
    yield _bounds(left - right, ranges)
    ours, theirs = _bounds(left, ranges), _bounds(right, ranges)
    yield ValueRanges(ours.lower - theirs.upper, ours.upper - theirs.lower)


Bounds = Callable[[Any, Ranges], ValueRanges[Any]]


def _cached(bounds: Bounds) -> Bounds:
    """Caches the bounds of a size by its expression and the ranges of its symbols: guards share most of their sizes."""
    known = lru_cache(1 << 14)(lambda size, within: bounds(size, dict(within)))

    @wraps(bounds)
    def looked_up(size: Any, ranges: Ranges) -> ValueRanges[Any]:
        return known(size, frozenset((symbol, ranges[symbol]) for symbol in size.free_symbols))

    return looked_up


@_cached
def _bounds(size: Any, ranges: Ranges) -> ValueRanges[Any]:
    """Returns bounds of a size: the product of the bounds of its factors."""
    factors = sympy.Mul.make_args(sympy.factor(normal_form(size)))
    return reduce(SymPyValueRangeAnalysis.mul, (_linear_bounds(factor, ranges) for factor in factors))


def _difference(left: Any, right: Any, ranges: Ranges) -> ValueRanges[Any]:
    """Returns bounds of `left - right`."""
    return _linear_bounds(left - right, ranges)


@_cached
def _linear_bounds(size: Any, ranges: Ranges) -> ValueRanges[Any]:
    """Returns bounds of a size, which is made linear first.

    `x // m`, for a positive number m, is (x - r) / m for a remainder r from 0 to m - 1. Equal quotients have the same
    remainder. A size with other quotients, or with quotients in a remainder, a minimum or a maximum, stays as it is.
    """
    known = dict(ranges)
    remainders: dict[Any, sympy.Dummy] = {}

    def exact(quotient: Any) -> Any:
        number, divisor = quotient.args
        remainder = remainders.setdefault(quotient, sympy.Dummy("r", integer=True, nonnegative=True))
        known[remainder] = ValueRanges(0, divisor - 1)
        return (number - remainder) / divisor

    linear = normal = normal_form(size)
    fixed = all(quotient.args[1].is_Integer and quotient.args[1] > 0 for quotient in normal.atoms(FloorDiv))
    if fixed and not any(part.has(FloorDiv) for part in normal.atoms(Mod, PythonMod, Min, Max)):
        linear = sympy.expand(normal.replace(lambda part: isinstance(part, FloorDiv), exact))
    factors = [factor.q for factor in linear.as_coefficients_dict().values() if factor.is_Rational]
    times = sympy.ilcm(1, *factors)
    bounds = bound_sympy(sympy.expand(linear * times), known)
    lower, upper = bounds.lower / times, bounds.upper / times
    return ValueRanges(sympy.ceiling(lower), sympy.floor(upper)) if normal.is_integer else ValueRanges(lower, upper)

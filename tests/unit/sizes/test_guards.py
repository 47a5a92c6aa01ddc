"""Guards on sizes: those that hold for all sizes are proved, and no others; of some, the few exceptions are found."""

from itertools import product
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.sizes.guards import ENUMERATED, FARTHEST, always, exceptions, holds_within

s, t = sympy.symbols("s t", integer=True, positive=True)
SMALL = {s: ValueRanges(8, 40), t: ValueRanges(2, 12)}
LARGE = {s: ValueRanges(8, 10**9), t: ValueRanges(2, 10**6)}

PADDED = s + PythonMod(-s, 4)
WINDOWED = s + PythonMod(7 - PythonMod(s, 7), 7)

PROVED: dict[str, Any] = {
    "a pooling that rounds up": 2 * FloorDiv(s - 1, 2) < s,
    "two of them": 2 * FloorDiv(s - 1, 4) < FloorDiv(s - 1, 2) + 1,
    "a quotient inside a quotient": 3 * FloorDiv(FloorDiv(s - 1, 2) + t + 1, 3) <= FloorDiv(s - 1, 2) + t + 1,
    "the smaller of two": sympy.Eq(Min(s + 1, 4 * s + 4), s + 1),
    "the larger of two": sympy.Eq(Max(s * t, s * t + 3), s * t + 3),
    "the same on both sides": sympy.Ne(s * t + 1, s * t),
    "a remainder": sympy.Eq(Mod(t, 10**7), t),
    "the number of parts": sympy.Eq(FloorDiv(5 * t - 1, t), 4),
    "the number of rows": sympy.Eq(FloorDiv(s * t - 1, t), s - 1),
    "the last part": sympy.Eq(Mod(s * t - 1, t), t - 1),
    "windows of a padded image": sympy.Eq(t * WINDOWED * PADDED, 28 * t * FloorDiv(WINDOWED, 7) * FloorDiv(PADDED, 4)),
    "a size that divides": sympy.Eq(Mod(PADDED, FloorDiv(PADDED, 4)), 0),
    "rows among elements": sympy.Ne(Mod(t * FloorDiv(PADDED, 4), 49 * t * FloorDiv(PADDED, 4)), 0),
    "more than one window": t * FloorDiv(WINDOWED, 7) > 2,
    "rows of one window or more": sympy.Ne(t + 1, (t + 1) * FloorDiv(PADDED, 4)),
    "one of two": sympy.Or(sympy.Eq(s, 9), sympy.Eq(PythonMod(PADDED, 4), 0)),
    "whole windows": sympy.Eq(PythonMod(WINDOWED, 7), 0),
    "at least as long": s <= WINDOWED,
    "two ways to pad": sympy.Eq(WINDOWED, s + PythonMod(-s, 7)),
    "rows of a padded length": sympy.Eq(Mod(8 * t * PADDED, 32 * t), 0),
    "a remainder of more": sympy.Ne(Mod(t, t * (FloorDiv(PADDED, 4) + 1)), 0),
}

AT_EACH_SIZE: dict[str, Any] = {
    "patches": sympy.Ne(FloorDiv(PADDED, 4), 1),
}

OPEN: dict[str, Any] = {
    "odd sizes": 2 * FloorDiv(s, 2) < s,
    "even sizes": sympy.Eq(2 * FloorDiv(s, 2), s),
    "one more": 4 * FloorDiv(s - 1, 4) < s - 1,
    "two dims": sympy.Ne(s, t + 6),
    "the smaller depends": sympy.Eq(Min(s, t), t),
    "quotients of different numbers": FloorDiv(s, 2) <= FloorDiv(s - 1, 2),
    "a padded length": sympy.Eq(Mod(PADDED, 8), 0),
    "padding": s < WINDOWED,
    "parts that a few rows exceed": sympy.Eq(FloorDiv(5 * t - 3, t), 4),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_always_holds_is_proved(name: str) -> None:
    assert always(PROVED[name], SMALL)
    assert always(PROVED[name], LARGE)
    assert all(_at(PROVED[name], a, b) for a, b in product(range(8, 41), range(2, 13)))


@pytest.mark.parametrize("name", AT_EACH_SIZE)
def test_what_holds_at_each_size_of_small_ranges_is_proved(name: str) -> None:
    assert always(AT_EACH_SIZE[name], {**SMALL, s: ValueRanges(9, 40)})
    assert not always(AT_EACH_SIZE[name], {s: ValueRanges(1, 10**9), t: ValueRanges(2, 10**6)})


@pytest.mark.parametrize("name", OPEN)
def test_what_fails_somewhere_is_not(name: str) -> None:
    assert not all(_at(OPEN[name], a, b) for a, b in product(range(8, 41), range(2, 13)))
    assert not always(OPEN[name], SMALL)
    assert not always(OPEN[name], LARGE)


DIVIDING: dict[str, Any] = {
    "a remainder": sympy.Ne(Mod(s, t - 2), 99),
    "a remainder that is small": PythonMod(s, t - 2) <= 40,
    "a quotient on both sides": FloorDiv(s, t - 2) - 1 < FloorDiv(s, t - 2) + PythonMod(-s, 4) - Mod(t, 1000) + t,
    "a quotient of which little depends": Min(FloorDiv(s, t - 2), 3) < 4,
}


@pytest.mark.parametrize("name", DIVIDING)
def test_what_divides_by_zero_is_not_proved(name: str) -> None:
    assert not always(DIVIDING[name], SMALL)
    assert not always(DIVIDING[name], LARGE)
    assert always(DIVIDING[name], {**SMALL, t: ValueRanges(3, 12)})


def test_a_negative_divisor_is_checked_size_by_size() -> None:
    rounded = FloorDiv(Max(-2, FloorDiv(1, s)), -3)  # -1 for s = 1, else 0
    assert not always(rounded < 0, {s: ValueRanges(1, 9)})
    assert always(rounded < 1, {s: ValueRanges(1, 9)})
    assert not always(rounded < 1, {s: ValueRanges(1, 10**9)})


INEXACT: dict[str, Any] = {
    "a third of a large number": sympy.Eq(s * t * t / 3 + PythonMod(s, 2) / 3, s * t * t / 3),
    "a reciprocal": 1 / s < PythonMod(s, 4) + 1,
    "a root": sympy.sqrt(s) <= PythonMod(s, 4) + s,
}


@pytest.mark.parametrize("name", INEXACT)
def test_what_python_computes_inexactly_is_not_proved(name: str) -> None:
    assert not always(INEXACT[name], {s: ValueRanges(2**30, 2**30 + 9), t: ValueRanges(2**30, 2**30 + 9)})


def test_a_size_without_bounds_is_not_proved() -> None:
    u = sympy.Symbol("u", integer=True)
    assert not always(PythonMod(u, 7) < 7, {})
    assert not always(PythonMod(u, 7) + u < 20, {u: ValueRanges(-int_oo, 5)})


def test_only_so_many_combinations_are_checked() -> None:
    holds = sympy.Ne(PythonMod(s, 4), PythonMod(s, 2) + 1)
    assert always(holds, {s: ValueRanges(2, ENUMERATED + 1)})
    assert not always(holds, {s: ValueRanges(2, ENUMERATED + 2)})
    assert not always(holds, {s: ValueRanges(FARTHEST - 4, FARTHEST)})


HALF, QUARTER = FloorDiv(s - 1, 2) + 1, FloorDiv(s - 1, 4) + 1
FEW: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "one": (sympy.Ne(s - 1, 1), [(2,)]),
    "none": (sympy.Ne(s + 1, 1), []),
    "the smallest": (s - 3 > 1, [(1,), (2,), (3,), (4,)]),
    "strides": (sympy.Ne(QUARTER, 1), [(1,), (2,), (3,), (4,)]),
    "a product": (sympy.Ne((s - 1) * (t - 1), 1), [(2, 2)]),
    "strides of two": (sympy.Ne(HALF * (FloorDiv(t - 1, 2) + 1), 1), [(1, 1), (1, 2), (2, 1), (2, 2)]),
    "the middle": (sympy.Ne(s, 7), [(7,)]),
}


@pytest.mark.parametrize("largest", [20, 10**6, int_oo])
@pytest.mark.parametrize("name", FEW)
def test_the_few_sizes_at_which_a_guard_fails_are_found(name: str, largest: Any) -> None:
    guard, sizes = FEW[name]
    found = exceptions(guard, {s: ValueRanges(1, largest), t: ValueRanges(1, largest)}, 8)
    assert found is not None
    assert [tuple(one.values()) for one in found] == sizes


@pytest.mark.parametrize("guard", [s < 8, sympy.Ne(s, t), sympy.Eq(Mod(s, 2), 0), sympy.Ne(s - 1, sympy.Symbol("u"))])
def test_many_or_unknown_exceptions_are_none(guard: Any) -> None:
    assert exceptions(guard, {s: ValueRanges(1, 10**6), t: ValueRanges(1, 10**6)}, 64) is None


WITHIN: dict[str, tuple[Any, Any, range | None]] = {
    "all but one": (sympy.Ne(s - 1, 1), 10**6, None),
    "from 3": (s - 1 > 1, 20, range(3, 21)),
    "from 3 on": (s - 1 > 1, 10**6, range(3, 10**6 + 1)),
    "below 20": (s < 20, 10**6, range(1, 20)),
    "one size": (sympy.Eq(s, 5), 10**6, range(5, 6)),
    "multiples": (sympy.Eq(Mod(s, 4), 0), 21, range(4, 21, 4)),
    "odd": (sympy.Eq(Mod(s, 2), 1), 21, None),
    "no size": (s > 30, 20, None),
    "two sizes": (s > t, 20, None),
}


@pytest.mark.parametrize("name", WITHIN)
def test_the_range_in_which_a_guard_holds_is_found(name: str) -> None:
    guard, largest, kept = WITHIN[name]
    found = holds_within(guard, {s: ValueRanges(1, largest), t: ValueRanges(1, 9)})
    assert (found and (found[0], found[-1], found.step)) == (kept and (kept[0], kept[-1], kept.step))


def _at(guard: Any, first: int, second: int) -> bool:
    return bool(guard.xreplace({s: sympy.Integer(first), t: sympy.Integer(second)}))

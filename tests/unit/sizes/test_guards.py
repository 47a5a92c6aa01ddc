"""Guards on sizes: those that hold for all sizes are proved, and no others."""

from itertools import product
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.sizes.guards import always

s, t = sympy.symbols("s t", integer=True, positive=True)
SMALL = {s: ValueRanges(8, 40), t: ValueRanges(2, 12)}
LARGE = {s: ValueRanges(8, 10**9), t: ValueRanges(2, 10**6)}

PROVED: dict[str, Any] = {
    "a pooling that rounds up": 2 * FloorDiv(s - 1, 2) < s,
    "two of them": 2 * FloorDiv(s - 1, 4) < FloorDiv(s - 1, 2) + 1,
    "a quotient inside a quotient": 3 * FloorDiv(FloorDiv(s - 1, 2) + t + 1, 3) <= FloorDiv(s - 1, 2) + t + 1,
    "the smaller of two": sympy.Eq(Min(s + 1, 4 * s + 4), s + 1),
    "the larger of two": sympy.Eq(Max(s * t, s * t + 3), s * t + 3),
    "the same on both sides": sympy.Ne(s * t + 1, s * t),
    "a remainder": sympy.Eq(Mod(t, 10**7), t),
}

OPEN: dict[str, Any] = {
    "odd sizes": 2 * FloorDiv(s, 2) < s,
    "even sizes": sympy.Eq(2 * FloorDiv(s, 2), s),
    "one more": 4 * FloorDiv(s - 1, 4) < s - 1,
    "two dims": sympy.Ne(s, t + 6),
    "the smaller depends": sympy.Eq(Min(s, t), t),
    "quotients of different numbers": FloorDiv(s, 2) <= FloorDiv(s - 1, 2),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_always_holds_is_proved(name: str) -> None:
    assert always(PROVED[name], SMALL)
    assert always(PROVED[name], LARGE)
    assert all(_at(PROVED[name], a, b) for a, b in product(range(8, 41), range(2, 13)))


@pytest.mark.parametrize("name", OPEN)
def test_what_fails_somewhere_is_not(name: str) -> None:
    assert not all(_at(OPEN[name], a, b) for a, b in product(range(8, 41), range(2, 13)))
    assert not always(OPEN[name], SMALL)
    assert not always(OPEN[name], LARGE)


def _at(guard: Any, first: int, second: int) -> bool:
    return bool(guard.xreplace({s: sympy.Integer(first), t: sympy.Integer(second)}))

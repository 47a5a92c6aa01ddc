"""Finds the sizes of a dim that a call accepts, by trying different sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import LARGEST


def taken_range(dim: Dim, taken: Mapping[str, int], takes: Callable[[Mapping[str, int]], bool]) -> tuple[int, int]:
    """Returns the smallest and the largest accepted size of a dim, with the other sizes as in `taken`.

    Sizes above the largest size that is tried count as accepted.
    """

    def one(size: int) -> bool:
        return takes({**taken, dim.name: size})

    known, top = taken[dim.name], dim.allowed(LARGEST)
    low = dim.min if one(dim.min) else _last(known, dim.min, -dim.step, one)
    return low, dim.max if top <= known or one(top) else _last(known, top, dim.step, one)


def _last(taken: int, refused: int, step: int, takes: Callable[[int], bool]) -> int:
    """Finds, by bisection, the accepted size that is farthest from `taken` towards `refused`."""
    while (gap := (refused - taken) // step) > 1:
        middle = taken + gap // 2 * step
        taken, refused = (middle, refused) if takes(middle) else (taken, middle)
    return taken

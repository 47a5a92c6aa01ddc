"""Finds the range of sizes of a dim that a model accepts, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import LARGEST


def taken_range(dim: Dim, taken: Mapping[str, int], takes: Callable[[Mapping[str, int]], bool]) -> tuple[int, int]:
    """Returns the smallest and the largest size of a dim that a model accepts while all other dims keep their sizes.

    The accepted sizes are assumed to be one interval. If the model accepts the largest size that is tried, the result's
    upper end is the maximum of the dim.

    Args:
        dim: the dim whose range of accepted sizes is searched.
        taken: a size for every dim. The model accepts this combination.
        takes: a function that returns whether the model accepts a combination of sizes.
    """

    def one(size: int) -> bool:
        return takes({**taken, dim.name: size})

    known, top = taken[dim.name], dim.allowed(LARGEST)
    low = dim.min if one(dim.min) else _last(known, dim.min, -dim.step, one)
    return low, dim.max if top <= known or one(top) else _last(known, top, dim.step, one)


def _last(taken: int, refused: int, step: int, takes: Callable[[int], bool]) -> int:
    """Returns the last accepted size between `taken`, which the model accepts, and `refused`, which it rejects.

    Finds this size by bisection. `step` is the distance between valid sizes, and negative if `refused` is smaller.
    """
    while (gap := (refused - taken) // step) > 1:
        middle = taken + gap // 2 * step
        taken, refused = (middle, refused) if takes(middle) else (taken, middle)
    return taken

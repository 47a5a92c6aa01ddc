"""Chooses the sizes at which a bundle is measured: a ladder through the ranges of its dims.

A rung of the ladder is one combination of sizes, with one size for every dim. The measured time depends mostly on the
number of rows of a matrix product, which is a product of dims. Therefore, among combinations of sizes with about the
same product, the ladder takes the combination that is nearest to the sizes of the capture. Nothing here imports torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.spec import Contract

STEP = 2**0.25
"""The minimum ratio between the products of sizes of two neighboring rungs."""

LARGEST = 1024
"""The largest measured size of a dim without an upper bound, unless the capture used a larger size."""

MOST = 4096
"""The maximum number of combinations of sizes from which the rungs are chosen. With many dims, each dim gets fewer
sizes. If even two sizes per dim result in more combinations, all dims grow together."""

TOGETHER = 64
"""The number of steps from the smallest to the largest sizes if all dims grow together."""


def ladder(contract: Contract, captured: Mapping[str, int]) -> list[dict[str, int]]:
    """Returns the rungs of the ladder, each as a map from the name of every dim to its size.

    The list starts with the sizes of the capture. The others are ordered by bisection, so that even the first few rungs
    are spread over the whole range.

    Args:
        contract: the contract that declares the dims, their ranges and the buckets, if any.
        captured: maps the name of every dim to its size in the capture.
    """
    dims = contract.dims()
    if not dims:
        return [{}]
    names = list(dims)
    rungs = [_rungs(dims[name], captured[name], contract) for name in names]
    together = 2 ** len(names) > MOST
    combinations: Iterable[tuple[int, ...]] = _diagonal(rungs) if together else itertools.product(*rungs)
    found = [dict(zip(names, sizes, strict=True)) for sizes in combinations]
    found.sort(key=lambda sizes: (math.prod(sizes.values()), _distance(sizes, captured)))
    chosen: list[dict[str, int]] = []
    for sizes in found:
        if not chosen or math.prod(sizes.values()) >= STEP * math.prod(chosen[-1].values()):
            chosen.append(sizes)
    if found[-1] not in chosen:
        chosen.append(found[-1])
    first = {name: captured[name] for name in names}
    return [first, *(chosen[at] for at in _spread(len(chosen)) if chosen[at] != first)]


def _rungs(dim: Dim, captured: int, contract: Contract) -> list[int]:
    """Returns the sizes of one dim from which the rungs are combined, in ascending order.

    If the dim has buckets, these are the sizes. Otherwise the sizes are the dim's limits, its size in the capture, and
    the powers of 2 and the midpoints between powers within the limits. If there are too many such sizes, only
    evenly spaced ones among them are returned.
    """
    if contract.buckets is not None and contract.buckets.dim == dim.name:
        return list(contract.buckets.sizes)
    high = dim.max if dim.max < UNBOUNDED else dim.allowed(max(LARGEST, captured))
    low = max(dim.min, 1)
    powers = [2**power for power in range(high.bit_length() + 1)]
    sizes = {dim.allowed(size) for size in (*powers, *(3 * power // 2 for power in powers)) if low <= size <= high}
    every = sorted({size for size in (*sizes, dim.allowed(low), dim.allowed(high), captured) if size >= 1})
    most = int(MOST ** (1 / len(contract.dims())))
    return [every[at * (len(every) - 1) // (most - 1)] for at in range(most)] if 2 <= most < len(every) else every


def _diagonal(rungs: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yields combinations from the smallest to the largest sizes, with all dims at the same fraction of their sizes."""
    for at in range(TOGETHER + 1):
        yield tuple(sizes[at * (len(sizes) - 1) // TOGETHER] for sizes in rungs)


def _distance(sizes: Mapping[str, int], captured: Mapping[str, int]) -> float:
    return sum(abs(math.log(size / max(captured[name], 1))) for name, size in sizes.items())


def _spread(count: int) -> Iterator[int]:
    """Yields 0 .. count - 1 by bisection: both ends, then the middle, then the middle of each half, and so on."""
    yield from range(0, count, max(count - 1, 1))
    done, pending = {0, count - 1}, [(0, count - 1)]
    while pending:
        low, high = pending.pop(0)
        middle = (low + high) // 2
        if middle not in done:
            done.add(middle)
            yield middle
            pending += [(low, middle), (middle, high)]

"""The sizes of calls at which a bundle is measured: a ladder through the ranges of its dims. No torch.

What is timed depends mostly on the number of rows of a product, which is a product of dims. So of the sizes with about
the same product, the one whose dims are nearest to those of the capture is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.spec import Contract

STEP = 2**0.25
"""The least ratio between the products of neighboring sizes."""

LARGEST = 1024
"""The largest size of a dim without an upper bound, if the capture had no larger one."""

MOST = 4096
"""The maximum number of combinations of sizes to select from. With many dims, each has fewer sizes, and dims of which
two sizes each are too many grow together."""

TOGETHER = 64
"""The number of steps in which dims grow together."""


def ladder(contract: Contract, captured: Mapping[str, int]) -> list[dict[str, int]]:
    """Returns sizes of all dims, in an order in which any beginning of the list is spread over the whole range.

    Args:
        contract: the dims with their ranges, and the buckets, if any.
        captured: the size of each dim in the capture, which comes first.
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
    """Returns ascending sizes of a dim: its buckets, or powers of 2 between its limits and the middles between them."""
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
    """Yields the sizes of all dims at the same share of their ranges, from the least to the largest."""
    for at in range(TOGETHER + 1):
        yield tuple(sizes[at * (len(sizes) - 1) // TOGETHER] for sizes in rungs)


def _distance(sizes: Mapping[str, int], captured: Mapping[str, int]) -> float:
    return sum(abs(math.log(size / max(captured[name], 1))) for name, size in sizes.items())


def _spread(count: int) -> Iterator[int]:
    """Yields 0 .. count - 1: both ends, then the middle, then the middles between those, and so on."""
    yield from range(0, count, max(count - 1, 1))
    done, pending = {0, count - 1}, [(0, count - 1)]
    while pending:
        low, high = pending.pop(0)
        middle = (low + high) // 2
        if middle not in done:
            done.add(middle)
            yield middle
            pending += [(low, middle), (middle, high)]

"""Sizes that tell whether a captured program is the model.

torch.export takes for granted that a size is 2 or more, and notes no guard: a branch on 1, or on what 1 makes of a
product, is gone without a word (torch 2.13). So sizes of 0 and 1 are tried, alone and together, beside small ones; and
the numbers that the model's own source names, with their neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from fuseconv.contract.inputs import LARGEST, example_sizes
from fuseconv.contract.spec import Contract, Dim

MOST_TOGETHER = 27
"""How many combinations of 1, 2 and more are tried: all of those of three dims."""

MOST_NAMED = 12
"""How many sizes are tried that the source names, and their neighbours."""


def telling_sizes(contract: Contract, named: Sequence[int]) -> list[dict[str, int]]:
    """Returns sizes of every dim, the ordinary ones first.

    Args:
        contract: with the dims.
        named: numbers to try as sizes, the most telling first.
    """
    ordinary = example_sizes(contract)
    found = [ordinary, *_together(list(contract.dims().values()), ordinary), *_named(contract, ordinary, named)]
    return [sizes for at, sizes in enumerate(found) if sizes not in found[:at]]


def _together(dims: Sequence[Dim], ordinary: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yields combinations of the smallest sizes: first each dim alone, then all of them, then some."""
    ends = {dim.name: _smallest(dim) for dim in dims}
    for dim in dims:
        for size in ends[dim.name]:
            yield {**ordinary, dim.name: size}
    for sizes in ((0, 0), (0, -1)):  # all at their first, then at their last
        yield {dim.name: ends[dim.name][sizes[1]] for dim in dims}
    ways = [(*ends[dim.name], ordinary[dim.name]) for dim in dims]
    for chosen in itertools.islice(itertools.product(*ways), MOST_TOGETHER):
        yield {dim.name: size for dim, size in zip(dims, chosen, strict=True)}


def _smallest(dim: Dim) -> list[int]:
    """Returns sizes of 0, 1 and 2 steps, so far as the dim has them; else its smallest."""
    return [dim.step * count for count in (1, 2, 0) if dim.min <= dim.step * count <= dim.max] or [dim.min]


def _named(contract: Contract, ordinary: dict[str, int], named: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yields sizes that a number names, and their neighbours, of each dim in turn."""
    near = dict.fromkeys(number + offset for number in named for offset in (0, 1, -1))
    pairs = [
        {**ordinary, dim.name: size}
        for size in near
        for dim in contract.dims().values()
        if size not in (0, 1, 2) and dim.min <= size <= min(dim.max, LARGEST) and dim.allowed(size) == size
    ]
    yield from pairs[:MOST_NAMED]

"""Chooses sizes at which a captured program is likely to differ from the model.

torch.export assumes that each size is at least 2 but records no guard, so the program loses a branch on size 1 (torch
2.13). Therefore two kinds of sizes are tried: sizes of 0 and 1, in one dim or in several; and the integers in the
model's code, together with the integers one below and one above.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import LARGEST, example_sizes
from fuseconv.contract.spec import Contract

MOST_TOGETHER = 27
"""The maximum number of combinations of small and ordinary sizes that are tried. It covers all combinations of three
sizes for three dims."""

MOST_NAMED = 12
"""The maximum number of combinations with an integer from the model's code, or its neighbor, that are tried."""


def telling_sizes(contract: Contract, named: Sequence[int]) -> list[dict[str, int]]:
    """Returns distinct combinations of sizes to try. Each maps the name of every dim to a size within its range.

    The first combination contains the example sizes of the contract.

    Args:
        contract: the contract with the dims.
        named: integers to try as sizes, the most likely first.
    """
    ordinary = example_sizes(contract)
    found = [ordinary, *_together(list(contract.dims().values()), ordinary), *_named(contract, ordinary, named)]
    return [sizes for at, sizes in enumerate(found) if sizes not in found[:at]]


def _together(dims: Sequence[Dim], ordinary: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yields combinations with small sizes: first in one dim at a time, then in all dims, then in any of the dims.

    The other dims have the ordinary sizes.
    """
    ends = {dim.name: _smallest(dim) for dim in dims}
    for dim in dims:
        for size in ends[dim.name]:
            yield {**ordinary, dim.name: size}
    for sizes in ((0, 0), (0, -1)):  # all dims at their first size, then at their last
        yield {dim.name: ends[dim.name][sizes[1]] for dim in dims}
    ways = [(*ends[dim.name], ordinary[dim.name]) for dim in dims]
    for chosen in itertools.islice(itertools.product(*ways), MOST_TOGETHER):
        yield {dim.name: size for dim, size in zip(dims, chosen, strict=True)}


def _smallest(dim: Dim) -> list[int]:
    """Returns the sizes of 1, 2 and 0 steps that are within the dim's range, or the dim's minimum if none is."""
    return [dim.step * count for count in (1, 2, 0) if dim.min <= dim.step * count <= dim.max] or [dim.min]


def _named(contract: Contract, ordinary: dict[str, int], named: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yields combinations in which one dim's size is an integer in `named`, or differs by 1 from such an integer."""
    near = dict.fromkeys(number + offset for number in named for offset in (0, 1, -1))
    pairs = [
        {**ordinary, dim.name: size}
        for size in near
        for dim in contract.dims().values()
        if size not in (0, 1, 2) and dim.min <= size <= min(dim.max, LARGEST) and dim.allowed(size) == size
    ]
    yield from pairs[:MOST_NAMED]

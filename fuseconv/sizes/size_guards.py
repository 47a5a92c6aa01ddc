"""Finds sizes within the contract that violate a guard of the captured program, where it may differ from the model.

torch.export records its assumptions about sizes as guards. For example, it records `height * width < 1000` if the model
branches on this condition. torch.export checks a guard on one dim against the range of the dim. It does not check a
guard on several dims, and the program contains only the branch that the example takes (torch 2.13). Therefore this
module searches for sizes that violate such guards, and the program is compared with the model at these sizes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.sizes.guards import always
from fuseconv.sizes.multiples import sizes_of_dims

POINTS = 128
"""The number of random combinations of sizes that are checked, and the maximum number of combinations of range ends."""

FARTHEST = 1024
"""The largest size that is checked, unless the minimum of the dim is larger."""


@dataclass(frozen=True)
class Suspect:
    """A combination of sizes that violates a guard.

    Attributes:
        sizes: the size of each dim of the contract, by name.
        guard: the violated guard as text, with the names of the dims.
        dims: the names of the dims that occur in the guard.
    """

    sizes: Mapping[str, int]
    guard: str
    dims: tuple[str, ...]


def suspects(exported: ExportedProgram, contract: Contract) -> list[Suspect]:
    """Returns combinations of sizes within the contract that violate guards on several dims.

    A combination may violate several guards at once; each guard is covered by at most one result. A guard that no
    checked combination violates is covered by none. Guards of the form `product != 1`, which torch adds where it does
    not broadcast, are ignored.

    Args:
        exported: the program. Its placeholders must have the input names of the contract.
        contract: the contract with the dims.
    """
    sizes = sizes_of_dims(exported, contract)
    if len(sizes) < 2:
        return []
    environment = next(iter(sizes.values())).shape_env
    dims = {name: dim for name, dim in contract.dims().items() if name in sizes}
    symbols = {name: environment.replace(sizes[name].expr).as_coeff_Mul()[1] for name in dims}
    ranges = {symbols[name]: ValueRanges(max(d.min // d.step, 2), d.max // d.step) for name, d in dims.items()}
    guards = [
        guard
        for guard in map(environment.replace, (one.expr for one in environment.guards))
        if len(guard.free_symbols) > 1 and guard.free_symbols <= ranges.keys() and not _is_broadcast(guard)
    ]
    open_guards = {guard for guard in guards if not always(guard, ranges)}
    found = []
    points = sorted(_points(list(contract.dims().values())), key=lambda point: math.prod(point.values()))
    for point in points:  # smallest first, because the model runs at these sizes
        values = {symbols[name]: sympy.Integer(point[name] // dim.step) for name, dim in dims.items()}
        failing = {guard for guard in open_guards if guard.xreplace(values) != sympy.true}
        if failing:
            guard = min(failing, key=lambda one: len(str(one)))
            names = {symbols[name]: sympy.Symbol(name) / dim.step for name, dim in dims.items()}
            about = tuple(name for name in dims if symbols[name] in guard.free_symbols)
            found.append(Suspect(point, str(guard.xreplace(names)), about))
            open_guards -= failing
    return found


def _is_broadcast(guard: sympy.Basic) -> bool:
    return isinstance(guard, sympy.Ne) and 1 in guard.args


def _points(dims: Sequence[Dim]) -> Iterator[dict[str, int]]:
    """Yields combinations of sizes: the ends of the ranges, then log-uniform random sizes between the ends."""
    lows = {dim.name: dim.allowed(max(dim.min, 2 * dim.step)) for dim in dims}
    highs = {dim.name: max(dim.allowed(FARTHEST), lows[dim.name]) for dim in dims}
    for ends in itertools.islice(itertools.product((lows, highs), repeat=len(dims)), POINTS):
        yield {dim.name: end[dim.name] for dim, end in zip(dims, ends, strict=True)}
    chance = random.Random(0)  # noqa: S311 - the same sizes every time
    for _ in range(POINTS):
        yield {
            dim.name: dim.allowed(round(lows[dim.name] * (highs[dim.name] / max(lows[dim.name], 1)) ** chance.random()))
            for dim in dims
        }

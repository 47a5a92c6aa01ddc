"""Sizes at which a captured program may not be the model.

While a model is exported, torch notes as guards what it takes for granted of the sizes: `height * width < 1000` where
the model asks for that. Those of one dim it holds against the dim's range, and raises. Those of several dims it does
not: the program keeps the branch that its example took (torch 2.13). So sizes are looked for at which such a guard
fails, and there the program is held against the model itself.
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

from fuseconv.contract.spec import Contract, Dim
from fuseconv.sizes.multiples import always, sizes_of_dims

POINTS = 128
"""How many combinations of sizes are looked at besides the ends of the ranges."""

FARTHEST = 1024
"""The largest size looked at, where a dim's smallest is not larger."""


@dataclass(frozen=True)
class Suspect:
    """Sizes at which a guard fails.

    Attributes:
        sizes: of every dim of the contract.
        guard: what the program takes for granted, said of the contract's dims.
        dims: those that it is about.
    """

    sizes: Mapping[str, int]
    guard: str
    dims: tuple[str, ...]


def suspects(exported: ExportedProgram, contract: Contract) -> list[Suspect]:
    """Returns sizes of the contract at which guards on several dims fail: each such guard fails at one of them.

    That a product of sizes is not 1 is left out: torch says so of whatever it does not broadcast.

    Args:
        exported: its placeholders are named as the contract says.
        contract: the dims.
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
    for point in points:  # the smallest first: the model will run at them
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
    """Yields combinations of sizes: of the ends, and at random, small ones rather than large ones."""
    lows = {dim.name: dim.allowed(max(dim.min, 2 * dim.step)) for dim in dims}
    highs = {dim.name: max(dim.allowed(FARTHEST), lows[dim.name]) for dim in dims}
    for ends in itertools.islice(itertools.product((lows, highs), repeat=len(dims)), POINTS):
        yield {dim.name: end[dim.name] for dim, end in zip(dims, ends, strict=True)}
    chance = random.Random(0)  # noqa: S311 - the same every time
    for _ in range(POINTS):
        yield {
            dim.name: dim.allowed(round(lows[dim.name] * (highs[dim.name] / max(lows[dim.name], 1)) ** chance.random()))
            for dim in dims
        }

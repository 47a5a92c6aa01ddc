"""Handles dims with a step, `height:32..512:32`: finds a model's steps, exports the dims, and checks the program.

torch.export raises an error if a model constrains a dim. But if the dim is a number times another dim, torch.export
silently narrows the other dim and keeps the branch that the example takes (torch 2.13). Therefore the guards that
torch.export records are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.functions import Max, Min, Mod, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract

ENUMERATED = 1 << 14
"""The maximum number of sizes of a dim that are checked one by one if algebra does not decide."""

TRIED = (
    *(2, 4, 8, 16, 32, 64, 128),
    *(3, 6, 12, 24, 48, 96, 5, 10, 20, 40, 80, 160, 320, 7, 14, 28, 56, 112, 224),
)
"""The steps that `accepted` tries. They come from downsampling, patches, audio frames, and windows of seven."""

_TRUE = ValueRanges(sympy.true, sympy.true)


class NarrowedError(Exception):
    """A program does not support all sizes of a dim with a step.

    Attributes:
        dim: the dim of the contract.
        kept: the dim with only the supported sizes. None if these are not the multiples of a number in a range.
        other: the dim with the largest range of sizes that the model treats alike, but not like the example. None if
            there is no such range.
        equal: the name of another dim that always has the same size, or None.
    """

    def __init__(self, dim: Dim, kept: Dim | None, other: Dim | None, equal: str | None) -> None:
        super().__init__(str(dim))
        self.dim = dim
        self.kept = kept
        self.other = other
        self.equal = equal


def accepted(contract: Contract, runs: Callable[[Contract], bool]) -> tuple[Dim, ...]:
    """Finds steps with which a model runs, if it does not run with the contract.

    Tries one step for all dims first, then a smaller step for each dim.

    Args:
        contract: the contract with the requested dims.
        runs: returns whether the model accepts tensors of a contract's example sizes.

    Returns:
        The dims that must change, each with its new step. Empty if no step in `TRIED` works.
    """
    names = list(contract.dims())
    step = next((step for step in TRIED if names and _takes(contract, dict.fromkeys(names, step), runs)), 1)
    steps = dict.fromkeys(names, step)
    for name in names if step > 1 else ():
        fewer = [less for less in (1, *TRIED) if step % less == 0 and less < step]
        steps[name] = next((less for less in sorted(fewer) if _takes(contract, {**steps, name: less}, runs)), step)
    dims = contract.dims().values()
    return tuple(_stepped(dim, steps) for dim in dims if steps[dim.name] > 1)


def _takes(contract: Contract, steps: Mapping[str, int], runs: Callable[[Contract], bool]) -> bool:
    stepped = {name: _stepped(dim, steps) for name, dim in contract.dims().items()}
    return all(dim.min <= dim.max for dim in stepped.values()) and runs(contract.with_dims(stepped))


def _stepped(dim: Dim, steps: Mapping[str, int]) -> Dim:
    return dim.narrowed(dim.min, dim.max, steps[dim.name])


def exported_as(dim: Dim) -> Any:
    """Returns torch's dim. For a dim with a step, the result is the step times another dim of torch."""
    if dim.step == 1:
        return torch.export.Dim(dim.name, min=dim.min, max=dim.max)
    return dim.step * torch.export.Dim(f"_{dim.name}", min=dim.min // dim.step, max=dim.max // dim.step)


def check(exported: ExportedProgram, contract: Contract) -> None:
    """Checks that a program supports every size of its contract's dims with a step.

    The program's placeholders must have the names of the contract. The size of one step is not checked here, because
    torch excludes sizes of 1; the parity tests cover this size. Guards on several dims are not checked here either; see
    `size_guards`.

    Raises:
        NarrowedError: the program does not support every size.
    """
    sizes = sizes_of_dims(exported, contract)
    for dim in contract.dims().values():
        if dim.step > 1 and dim.name in sizes:
            _check(dim, sizes)


def sizes_of_dims(exported: ExportedProgram, contract: Contract) -> dict[str, Any]:
    """Returns the symbolic size (SymNode) of each dim. Placeholders must have the names of the contract."""
    placeholders = {node.name: node for node in exported.graph.find_nodes(op="placeholder")}
    return {
        dim.name: size.node
        for spec in contract.inputs
        for dim, size in zip(spec.shape, placeholders[spec.name].meta["val"].shape, strict=True)
        if isinstance(dim, Dim) and isinstance(size, torch.SymInt)
    }


def always(guard: sympy.Basic, ranges: dict[sympy.Symbol, ValueRanges[Any]]) -> bool:
    """Returns whether a guard always holds, according to the ranges of its parts.

    A value below its modulus equals its remainder, and a minimum equals the operand that is never greater than the
    others.
    """

    def reduced(remainder: Any) -> Any:
        number, modulus = (bound_sympy(part, ranges) for part in remainder.args)
        return remainder.args[0] if number.lower >= 0 and number.upper < modulus.lower else remainder

    def chosen(extreme: Any) -> Any:
        bounds = {part: bound_sympy(part, ranges) for part in extreme.args}
        for part, own in bounds.items():
            others = [bound for other, bound in bounds.items() if other != part]
            if all(own.upper <= one.lower if isinstance(extreme, Min) else own.lower >= one.upper for one in others):
                return part
        return extreme

    settled = guard.replace(lambda part: isinstance(part, (Mod, PythonMod)), reduced)
    settled = settled.replace(lambda part: isinstance(part, (Min, Max)), chosen)
    return bool(settled == sympy.true or bound_sympy(settled, ranges) == _TRUE)


def _check(dim: Dim, sizes: dict[str, Any]) -> None:
    environment, expression = sizes[dim.name].shape_env, sizes[dim.name].expr
    equal = next((name for name, other in sizes.items() if other.expr == expression and name != dim.name), None)
    step, symbol = expression.as_coeff_Mul()
    wanted = range(max(dim.min, 2 * dim.step), dim.max + 1, dim.step)
    whole = {symbol: ValueRanges(wanted[0] // int(step), dim.max // int(step))}
    guards = (environment.replace(guard.expr) for guard in environment.guards)
    unsettled = [g for g in guards if g.free_symbols == {symbol} and not always(g, whole)]

    def treated(size: int) -> tuple[bool, ...]:
        at = {symbol: sympy.Integer(size // step)}
        return size % step == 0, *(guard.xreplace(at) == sympy.true for guard in unsettled)

    tried = wanted[:ENUMERATED] if unsettled or step != dim.step else wanted[:0]
    alike: dict[tuple[bool, ...], list[int]] = {}
    for size in tried:
        alike.setdefault(treated(size), []).append(size)
    if dim.min < wanted[0] and tried:  # the size of one step: some guards only exclude this size
        alike.get(treated(dim.min), alike[treated(wanted[0])]).insert(0, dim.min)
    if equal or any(not all(ways) for ways in alike) or (tried and len(tried) < len(wanted)):
        dims = {ways: _of(dim, sizes) for ways, sizes in alike.items()}
        kept = next((dims.pop(ways) for ways in alike if all(ways)), None)
        others = [other for other in dims.values() if other and other.min < other.max]
        most = max(others, key=lambda other: (other.max - other.min) // other.step, default=None)
        raise NarrowedError(dim, kept, most, equal)


def _of(dim: Dim, sizes: Sequence[int]) -> Dim | None:
    """Returns the dim with exactly these sizes. None if they are not all multiples of a number in a range."""
    step = math.gcd(*sizes)
    every = list(sizes) == list(range(sizes[0], sizes[-1] + 1, step))
    return Dim(dim.name, sizes[0], sizes[-1], step) if every else None

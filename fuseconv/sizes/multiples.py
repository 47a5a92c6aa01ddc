"""Handles dims with a step, such as `height:32..512:32`, of which only multiples of the step are valid.

The functions find the steps that a model requires, express a dim with a step for torch.export, and check the exported
program. The check is needed because of a gap in torch.export (torch 2.13). It raises an error if a model constrains a
plain dim. But a dim with a step is exported as the step times another dim, and torch.export silently narrows this other
dim and keeps the branch that the example takes. Therefore the recorded guards are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.sizes.guards import always

ENUMERATED = 1 << 14
"""The maximum number of sizes of a dim that are checked one by one if its guards cannot be decided symbolically."""

TRIED = (
    *(2, 4, 8, 16, 32, 64, 128),
    *(3, 6, 12, 24, 48, 96, 5, 10, 20, 40, 80, 160, 320, 7, 14, 28, 56, 112, 224),
)
"""The steps that `accepted` tries, in this order. They are typical of downsampling, patches, audio frames, and windows
of seven."""


class NarrowedError(Exception):
    """A program does not support all sizes of a dim with a step.

    Attributes:
        dim: the dim of the contract.
        kept: the dim restricted to the supported sizes. None if the supported sizes are not all multiples of a step
            within a range.
        other: the dim restricted to the longest range of sizes for which the model takes one branch, different from the
            branch that the example takes. None if there is no such range.
        equal: the name of another dim that must have the same size in this program, or None.
    """

    def __init__(self, dim: Dim, kept: Dim | None, other: Dim | None, equal: str | None) -> None:
        super().__init__(str(dim))
        self.dim = dim
        self.kept = kept
        self.other = other
        self.equal = equal


def accepted(contract: Contract, runs: Callable[[Contract], bool]) -> tuple[Dim, ...]:
    """Finds the step of each dim of a contract with which a model runs, if the model fails without steps.

    First finds one step with which the model runs if all dims use it, except those whose range has no multiple of it.
    Then reduces the step of each dim, one dim after the other, to the smallest step with which the model still runs.

    Args:
        contract: the contract with the requested dims.
        runs: a function that returns whether the model accepts tensors with the example sizes of a contract.

    Returns:
        The dims that require a step above 1, with this step. Empty if the model fails with all steps in `TRIED`.
    """
    dims = contract.dims()

    def takes(steps: Mapping[str, int]) -> bool:
        return runs(contract.with_dims({name: _stepped(dims[name], step) for name, step in steps.items()}))

    uniform = ({name: step for name, dim in dims.items() if _has(dim, step)} for step in TRIED)
    steps = next((steps for steps in uniform if steps and takes(steps)), {})
    for name, step in steps.items():
        fewer = [less for less in (1, *TRIED) if step % less == 0 and less < step]
        steps[name] = next((less for less in sorted(fewer) if takes({**steps, name: less})), step)
    return tuple(_stepped(dims[name], step) for name, step in steps.items() if step > 1)


def _has(dim: Dim, step: int) -> bool:
    """Returns whether the range of a dim has a multiple of a step."""
    stepped = _stepped(dim, step)
    return stepped.min <= stepped.max


def _stepped(dim: Dim, step: int) -> Dim:
    return dim.narrowed(dim.min, dim.max, step)


def exported_as(dim: Dim) -> Any:
    """Returns the `torch.export.Dim` for a dim, or the step times another `torch.export.Dim` if the dim has a step."""
    if dim.step == 1:
        return torch.export.Dim(dim.name, min=dim.min, max=dim.max)
    return dim.step * torch.export.Dim(f"_{dim.name}", min=dim.min // dim.step, max=dim.max // dim.step)


def check(sizes: Mapping[str, Any], contract: Contract) -> None:
    """Checks that a program supports every size of the dims that have a step.

    The size that equals the step is not checked, because its quotient by the step is 1, which torch.export excludes.
    The parity tests cover this size. `size_guards` checks guards on several dims.

    Args:
        sizes: the symbolic size (SymNode) of each dim in the program, by the dim's name.
        contract: the contract with the dims.

    Raises:
        NarrowedError: the program does not support every size of a dim.
    """
    for dim in contract.dims().values():
        if dim.step > 1 and dim.name in sizes:
            _check(dim, sizes)


def sizes_of_dims(exported: ExportedProgram, contract: Contract) -> dict[str, Any]:
    """Returns the symbolic size (SymNode) of each dim by the dim's name.

    The program's placeholders must have the input names of the contract.
    """
    placeholders = {node.name: node for node in exported.graph.find_nodes(op="placeholder")}
    return {
        dim.name: size.node
        for spec in contract.inputs
        for dim, size in zip(spec.shape, placeholders[spec.name].meta["val"].shape, strict=True)
        if isinstance(dim, Dim) and isinstance(size, torch.SymInt)
    }


def _check(dim: Dim, sizes: Mapping[str, Any]) -> None:
    """Raises `NarrowedError` if a guard on this dim alone, or another step, excludes a size of the dim."""
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
    """Returns a dim whose sizes are exactly the given sizes, or None if these are not evenly spaced multiples."""
    step = math.gcd(*sizes)
    every = list(sizes) == list(range(sizes[0], sizes[-1] + 1, step))
    return Dim(dim.name, sizes[0], sizes[-1], step) if every else None

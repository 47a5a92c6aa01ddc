"""Checks that a captured program and the original model compute the same outputs, within tolerance.

The outputs of the original are compared with the float64 reference, which is computed from the program. Comparing the
program's own outputs with this reference would prove nothing, because a wrong program agrees with its own reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fuseconv.capture.drawn import draw_taken
from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UnsupportedError, is_out_of_memory
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.original import Original
from fuseconv.sizes.failing_sizes import first_line, sizes_text
from fuseconv.sizes.taken_sizes import taken_range


def difference(
    original: Sequence[Tensor], program: Sequence[Tensor], names: Sequence[str], fp64: Sequence[Tensor]
) -> str:
    """Describes the first difference between the outputs of the original and the program, or returns "" if they agree.

    The outputs agree if their counts, dtypes and shapes are the same, and their values are equal within tolerance.

    Args:
        original: the outputs of the original model.
        program: the outputs of the captured program.
        names: the names of the outputs.
        fp64: the outputs of the program computed in float64.
    """
    if not len(original) == len(program) == len(names):
        counts = f"the model returns {len(original)} tensors, but the exported program returns {len(program)}"
        return f"{counts}, and its graph declares {len(names)}"
    for at, (name, ours, captured) in enumerate(zip(names, original, program, strict=True)):
        if ours.dtype != captured.dtype or ours.shape != captured.shape:
            kinds = [f"{one.dtype} {list(one.shape)}" for one in (ours, captured)]
            return f"output {name} is {kinds[0]} in the model, but {kinds[1]} in the exported program"
        if torch.equal(ours, captured):
            continue
        row = compare(ours, captured, fp64[at])
        if not row.ok:
            wrong = int((~torch.isclose(ours, captured, equal_nan=True)).sum())
            return f"{wrong} of {ours.numel()} elements of {name} differ, by up to {row.max_abs:.3g}"
    return ""


def hold(
    exported: ExportedProgram,
    contract: Contract,
    original: Original,
    sizes: Sequence[Mapping[str, int]],
    line: Callable[[Mapping[str, int]], str],
) -> None:
    """Checks that a captured program and the original model compute the same outputs at the given sizes.

    Args:
        exported: the captured program, in the flat calling convention.
        contract: the inputs, with ranges of values that the model accepts, and the names of the outputs.
        original: the model that was captured.
        sizes: the cases to compare. Each maps every dim's name to its size. The first has the sizes of the capture.
        line: a function that returns the source line at which the model treats sizes in another way than the program,
            or "" if it is unknown.

    Raises:
        UnsupportedError: the outputs differ, or one of the two fails. The error names the sizes, the output and the
            difference.
        UsageError: the original fails at all sizes on random inputs for the contract.
    """
    module = exported.module(check_guards=False)

    def differs(tried: Mapping[str, int]) -> str:
        inputs, expected = draw_taken(original, contract, tried, seed=0)
        return against(module, inputs, expected, contract)

    for tried in sizes:
        if reason := differs(tried):
            raise _disagreement(reason, tried, sizes[0], contract, original, differs, line)


def agrees(exported: ExportedProgram, contract: Contract, original: Original, sizes: Mapping[str, int]) -> bool:
    """Returns whether a captured program and the original compute the same outputs; False if one of them fails."""
    try:
        inputs, expected = draw_taken(original, contract, sizes, seed=0)
    except FuseconvError:
        return False
    return not against(exported.module(check_guards=False), inputs, expected, contract)


def against(module: GraphModule, inputs: tuple[Tensor, ...], expected: Sequence[Tensor], contract: Contract) -> str:
    """Runs a captured program and describes how its outputs differ from `expected`, or returns "" if they agree.

    Args:
        module: the module of the captured program.
        inputs: the inputs on which the original was run.
        expected: the outputs of the original model for these inputs.
        contract: the contract, which contains the names of the outputs.
    """
    try:
        with torch.no_grad():
            found = pytree.tree_leaves(module(*inputs))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return f"the model runs, but the exported program fails: {type(error).__name__}: {first_line(error)}"

    if _are_equal(expected, found):
        return ""
    with torch.no_grad():
        return difference(expected, found, contract.outputs, interpret_in_float64(module, inputs))


def _are_equal(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(ones) == len(others) and all(
        one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(ones, others, strict=True)
    )


def not_the_original(reason: str, original: Original, when: str) -> UnsupportedError:
    """Returns the error for a captured program whose results differ from the model's.

    Args:
        reason: the description of the difference.
        original: the original model, whose class the error names.
        when: the inputs at which the results differ, such as `on random inputs`.
    """
    return UnsupportedError(
        f"the exported program and the model give different results {when}: {reason}",
        where=type(original.module).__name__,
        fix="look for code that behaves differently during export (torch.compiler.is_exporting, isinstance of a size, "
        "Python state that a call leaves for the next one), or narrow the ranges in --input",
    )


def _disagreement(
    reason: str,
    tried: Mapping[str, int],
    ordinary: Mapping[str, int],
    contract: Contract,
    original: Original,
    differs: Callable[[Mapping[str, int]], str],
    line: Callable[[Mapping[str, int]], str],
) -> UnsupportedError:
    """Finds out why a program differs from the model at the sizes `tried`, and returns the error with a fix."""
    at = sizes_text(tried)
    inputs, first = draw_taken(original, contract, tried, seed=0)
    if difference(original(*inputs), first, contract.outputs, first):
        return UnsupportedError(
            "the model returns different results for the same inputs",
            where=type(original.module).__name__,
            fix="make the outputs depend only on the inputs",
        )
    if differs(ordinary):
        return not_the_original(reason, original, f"at {at}" if at else "on random inputs")

    def same(sizes: Mapping[str, int]) -> bool:
        try:
            return not differs(sizes)
        except FuseconvError:
            return False

    return UnsupportedError(
        f"the model branches on its sizes, and torch.export captured only one branch: "
        f"the program differs at {at}: {reason}",
        where=line(tried) or type(original.module).__name__,
        fix=_narrower(tried, ordinary, contract, same),
    )


def _narrower(
    tried: Mapping[str, int],
    ordinary: Mapping[str, int],
    contract: Contract,
    agrees: Callable[[Mapping[str, int]], bool],
) -> str:
    """Returns the fix for an error: ranges that exclude the failing sizes or, if none are found, dims to narrow."""
    ranges: list[Dim] = []
    for name, dim in contract.dims().items():
        if agrees({**tried, name: ordinary[name]}) or not agrees({**ordinary, name: tried[name]}):
            near = (tried[name], dim.max) if tried[name] < ordinary[name] else (dim.min, tried[name])
            low, high = taken_range(dim.narrowed(*near, dim.step), ordinary, agrees)
            only = dim.narrowed(low, high, dim.step)
            if not only.min <= tried[name] <= only.max:
                ranges.append(only)
    if ranges:
        return f"write {' or '.join(map(str, ranges))} in --input, or give a static size"
    names = [name for name in tried if tried[name] != ordinary[name]] or list(tried)
    return f"narrow the ranges of {' and '.join(names)} in --input, or give static sizes"

"""Compares two graphs with the same placeholders on the same operands, and finds the first element that differs.

Every replacement is tested in this way: on the examples of its rule, and at each match on the values of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph

from fuseconv.graph.runner import Runner
from fuseconv.matching.graph import op_name
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.numerics.tolerance import TOLERANCES, compare

SEED = 0

CANNOT_RUN = (RuntimeError, IndexError)
"""The exceptions that ops raise if they reject their operands."""

ROOT = torch.nn.Module()
"""The root module for running graphs that reference no attributes."""


@dataclass(frozen=True)
class Compared:
    """The result of comparing a replacement with the matched ops on one set of operands.

    Attributes:
        difference: a description of the first difference. Empty if there is none.
        ran: whether the matched ops can run on the operands. If not, nothing was compared.
        equal: whether all results are equal. Equal results need no float64 run, so their errors are not measured.
        rmse: the root-mean-square error of the replacement against float64, for the result in which it is largest. None
            if it was not measured.
        rmse_matched: the error of the matched ops for the same result, or None.
    """

    difference: str = ""
    ran: bool = True
    equal: bool = False
    rmse: float | None = None
    rmse_matched: float | None = None


_NOT_RUN = Compared(ran=False)


def compare_graphs(
    before: Graph,
    after: Graph,
    operands: Sequence[Any],
    *,
    ordinary: bool,
    overflowing: bool = False,
    fp64_only: bool = False,
) -> Compared:
    """Runs two graphs and compares their results.

    Both graphs run in the dtypes of the program. The reference is a run of `before` in float64, with the tolerances of
    tolerance.py. There is no difference if `before` cannot run on the operands, for example because an index is out of
    range. Where the matched ops overflow, the replacement may be more accurate. Unless the operands are ordinary,
    the replacement may also have errors as large as rounding causes in the matched ops. See `_settled` and
    `_conditioned`.

    Args:
        before: the graph of the matched ops. Its output is a tuple of tensors.
        after: the graph of the replacement.
        operands: the values of the placeholders of both graphs, in order. They are not mutated.
        ordinary: whether the operands are ordinary numbers, for which rounding errors stay small.
        overflowing: whether the operands are so large that float64 may overflow too.
        fp64_only: whether only the error against the float64 reference counts; see tolerance.py.
    """
    try:
        original = run(before, operands)
    except CANNOT_RUN:
        return _NOT_RUN
    failure = ""
    try:
        actual = run(after, operands)
    except CANNOT_RUN as problem:
        failure = f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"
    if not failure and _are_equal(actual, original):
        return Compared(equal=True)
    try:
        fp64 = run_in_float64(before, operands)
    except CANNOT_RUN:
        return _NOT_RUN
    if failure:
        return Compared(failure)
    cudnn = _by_cudnn(before, operands)
    found = compared(actual, original, fp64, fp64_only, cudnn)
    if not found.difference or not _are_alike(actual, original):
        return found
    expected = [_settled(*three, overflowing) for three in zip(actual, original, fp64, strict=True)]
    if not ordinary:
        spread = _spread(before, operands, fp64)
        expected = [_conditioned(*four) for four in zip(actual, expected, fp64, spread, strict=True)]
    return compared(actual, [one for one, _ in expected], [true for _, true in expected], fp64_only, cudnn)


def _by_cudnn(graph: Graph, operands: Sequence[Any]) -> bool:
    """Returns whether cuDNN may compute a convolution of the graph."""
    on_cuda = any(isinstance(one, torch.Tensor) and one.is_cuda for one in operands)
    names = (op_name(node.target) for node in graph.nodes if node.op == "call_function")
    return on_cuda and any(name.startswith(("aten.conv", "fuseconv.conv")) for name in names)


def agree_in_float64(before: Graph, after: Graph, operands: Sequence[Any]) -> bool:
    """Returns whether both graphs give the same results in float64. Returns False if `after` cannot run."""
    fp64 = run_in_float64(before, operands)
    try:
        return not difference(run_in_float64(after, operands), fp64, fp64)
    except CANNOT_RUN:
        return False


def _are_alike(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor]) -> bool:
    return all(
        one.shape == other.shape and one.dtype == other.dtype for one, other in zip(actual, original, strict=True)
    )


def _are_equal(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor]) -> bool:
    """Returns whether all elements of all results are equal. Equal results need no comparison with the reference."""
    return _are_alike(actual, original) and all(map(_is_equal, actual, original))


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _settled(
    actual: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor, overflowing: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adjusts the expected result and the float64 reference where the matched ops overflow, and returns both.

    If an element of `original` overflows but the float64 result does not, the replacement may either overflow or
    equal the float64 result, converted to the dtype of `original`. If `overflowing`, two kinds of elements are not
    compared: elements that overflow in float64 too, and finite elements of `original` that are wrong because an
    intermediate value overflowed, such as the square of 1e30.
    """
    if not original.is_floating_point():
        return original, fp64
    overflown, known = ~original.isfinite(), fp64.isfinite()
    free = overflown & known & ~actual.isfinite()
    if overflowing:
        free |= overflown & ~known
        free |= ~overflown & known & ((original - fp64).abs() > fp64.abs() / 2)
    expected = torch.where(overflown & known, fp64.to(original.dtype), original)
    return torch.where(free, actual, expected), torch.where(free, actual.double(), fp64)


_ROUNDINGS = 4
"""The number of runs with randomly rounded intermediate values. They measure the effect of rounding on the results."""

_SLACK = 8
"""The allowed error, as a multiple of the largest change that the runs with random rounding find. A few runs do not
find the largest possible change."""


def _spread(before: Graph, operands: Sequence[Any], fp64: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns, for each element of the results, the largest change caused by random rounding of intermediate values."""
    generator = torch.Generator().manual_seed(SEED)
    spread = [torch.zeros_like(true) for true in fp64]
    for _ in range(_ROUNDINGS):
        moved = run_in_float64(before, operands, shaken=generator)
        for at, (one, true) in enumerate(zip(moved, fp64, strict=True)):
            if true.is_floating_point() and one.shape == true.shape:
                spread[at] = torch.maximum(spread[at], (one - true).abs())
    return spread


def _conditioned(
    actual: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor], fp64: torch.Tensor, spread: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the expected result and the reference. Both equal `actual` where rounding explains its error."""
    if not actual.is_floating_point():
        return expected
    explained = (actual.double() - fp64).abs() <= _SLACK * spread
    right, true = expected
    return torch.where(explained, actual, right), torch.where(explained, actual.double(), true)


def overflows(original: Sequence[torch.Tensor], fp64: Sequence[torch.Tensor]) -> bool:
    """Returns whether any element is finite in the float64 results but infinite or NaN in the original results."""
    return any(bool((~one.isfinite() & true.isfinite()).any()) for one, true in zip(original, fp64, strict=True))


def run(graph: Graph, operands: Sequence[Any], seed: int = SEED) -> Any:
    """Runs a graph on copies of the operands.

    Raises:
        RuntimeError: an op fails or returns None, as cuDNN's attention does for a batch of size 0.
    """
    with torch.no_grad(), same_draws(seed):
        results = Runner(ROOT, graph=graph).run(*map(clone, operands))
    if any(one is None for one in results):
        raise RuntimeError("an op returns no tensor")
    return results


def run_in_float64(
    graph: Graph, operands: Sequence[Any], seed: int = SEED, shaken: torch.Generator | None = None
) -> list[Any]:
    """Runs a graph on copies of the operands in float64 and returns its results.

    Args:
        graph: the graph to run.
        operands: the values of the placeholders, in order. They are not mutated.
        seed: the seed of random ops.
        shaken: passed to `interpret_in_float64`.
    """
    device = next((operand.device.type for operand in operands if isinstance(operand, torch.Tensor)), "cpu")
    with torch.no_grad(), same_draws(seed), torch.autocast(device, enabled=False):
        return interpret_in_float64(ROOT, [clone(operand) for operand in operands], graph, shaken)


def clone(value: Any) -> Any:
    """Returns a copy of a tensor with the same strides, unless a stride is 0. Every element of the copy is writable."""
    if not isinstance(value, torch.Tensor):
        return value
    return copied(value.detach())


def copied(value: torch.Tensor) -> torch.Tensor:
    """Returns a differentiable copy of a tensor. The copy keeps the strides, which determine dropout masks on CUDA."""
    if 0 in value.stride():
        return value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


@contextmanager
def same_draws(seed: int = SEED) -> Iterator[None]:
    """A context manager that seeds the random generators, and restores their states at the end of the block."""
    # torch.manual_seed records the stack for missing accelerators, which takes milliseconds.
    generators = [torch.default_generator, *torch.cuda.default_generators]
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def cotangents(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns one random gradient per result, for torch.autograd.grad. The values do not depend on the dtypes."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = (torch.randn(result.shape, generator=generator) for result in results)
    # The numbers are rounded to bfloat16, so that results of every dtype, also the fp64 reference, get the same values.
    return [one.to(torch.bfloat16).to(result) for one, result in zip(drawn, results, strict=True)]


def difference(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor], fp64: Sequence[torch.Tensor]) -> str:
    """Returns the difference that `compared` finds with its default options."""
    return compared(actual, original, fp64).difference


def compared(
    actual: Sequence[torch.Tensor],
    original: Sequence[torch.Tensor],
    fp64: Sequence[torch.Tensor],
    fp64_only: bool = False,
    cudnn: bool = False,
) -> Compared:
    """Compares results with those of the matched ops, up to the first result that exceeds its tolerance.

    Args:
        actual: the results of the replacement.
        original: the results of the matched ops.
        fp64: the results of the matched ops in float64; see tolerance.py.
        fp64_only: whether only the error against `fp64` counts, and not the difference from `original`.
        cudnn: whether the matched ops may contain convolutions of cuDNN; see tolerance.py.
    """
    worst = Compared()
    for position, (one, other, true) in enumerate(zip(actual, original, fp64, strict=True)):
        row = compare(one, other, true, fp64_only=fp64_only, cudnn=cudnn)
        if not row.ok:
            name = "the result" if len(actual) == 1 else f"result {position}"
            found = f"{name} differs{_first(one, other)}: {row.reason}"
            return Compared(found, rmse=row.rmse_vs_fp64, rmse_matched=row.rmse_original_vs_fp64)
        if worst.rmse is None or row.rmse_vs_fp64 > worst.rmse:
            worst = Compared(rmse=row.rmse_vs_fp64, rmse_matched=row.rmse_original_vs_fp64)
    return worst


def _first(actual: torch.Tensor, original: torch.Tensor) -> str:
    if actual.shape != original.shape or actual.dtype != original.dtype or not original.numel():
        return ""
    if original.dtype in TOLERANCES:
        tolerance = TOLERANCES[original.dtype]
        same = torch.isclose(actual, original, tolerance.rtol, tolerance.atol, equal_nan=True)
    else:
        same = actual == original
    different = (~same).nonzero()
    place = different[0].tolist() if different.numel() else [0] * original.dim()
    index = tuple(place)
    return f" at {place}, {actual[index].item()!r} instead of {original[index].item()!r}"

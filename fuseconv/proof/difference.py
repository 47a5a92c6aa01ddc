"""Two graphs of the same placeholders on the same operands: the first element in which their results differ.

It is how every replacement is judged: that of a rule, on programs of its examples, and that of a site, on the values
that a model has there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Interpreter

from fuseconv.numerics.tolerance import TOLERANCES, compare
from fuseconv.numerics.truth import interpret_in_float64

SEED = 0

CANNOT_RUN = (RuntimeError, IndexError)
"""What ops raise that do not take their operands."""

ROOT = torch.nn.Module()
"""What the graphs read attributes of: they have none."""


def judge(
    before: Graph,
    after: Graph,
    operands: Sequence[Any],
    *,
    ordinary: bool,
    overflowing: bool = False,
    by_truth: bool = False,
) -> str:
    """Says how what `after` gives differs from what `before` gives; nothing when it does not.

    Both run in the dtypes of the program. The truth is `before` in float64, and the tolerances are those of
    tolerance.py. Operands that `before` cannot run on, as an index out of range, show nothing. What the original
    itself overflows at may be given right by the replacement, and an error may be made that roundings on the way of
    the original make as well; see `_settled` and `_conditioned`.

    Args:
        before: what is replaced; its output is a tuple of tensors.
        after: what is put in its place.
        operands: what the placeholders of both stand for, in order; they are not written.
        ordinary: whether the operands are ordinary numbers, which make no error large.
        overflowing: whether they are so large that float64 may overflow as well.
        by_truth: whether to be close to the original is not enough; see tolerance.py.
    """
    try:
        original = run(before, operands)
        truth = run_in_float64(before, operands)
    except CANNOT_RUN:
        return ""
    try:
        actual = run(after, operands)
    except CANNOT_RUN as problem:
        return f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"
    found = difference(actual, original, truth, by_truth)
    if not found or not _are_alike(actual, original):
        return found
    expected = [_settled(*three, overflowing) for three in zip(actual, original, truth, strict=True)]
    if not ordinary:
        spread = _spread(before, operands, truth)
        expected = [_conditioned(*four) for four in zip(actual, expected, truth, spread, strict=True)]
    return difference(actual, [one for one, _ in expected], [true for _, true in expected], by_truth)


def agree_in_float64(before: Graph, after: Graph, operands: Sequence[Any]) -> bool:
    """Whether both give the same where neither rounds to the dtypes of the program."""
    truth = run_in_float64(before, operands)
    try:
        return not difference(run_in_float64(after, operands), truth, truth)
    except CANNOT_RUN:
        return False


def _are_alike(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor]) -> bool:
    return all(
        one.shape == other.shape and one.dtype == other.dtype for one, other in zip(actual, original, strict=True)
    )


def _settled(
    actual: torch.Tensor, original: torch.Tensor, truth: torch.Tensor, overflowing: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what is expected and true of a replacement where the original overflows, or float64 does.

    Where the original overflows and float64 does not, the replacement may overflow too, or give what float64 gives;
    beyond what the dtype holds it must overflow. Where float64 overflows as well, nothing is known, and nothing asked;
    nor where a number inside has overflowed, as the square of 1e30, and left one that is far from float64's.
    """
    if not original.is_floating_point():
        return original, truth
    overflown, known = ~original.isfinite(), truth.isfinite()
    free = overflown & known & ~actual.isfinite()
    if overflowing:
        free |= overflown & ~known
        free |= ~overflown & known & ((original - truth).abs() > truth.abs() / 2)
    expected = torch.where(overflown & known, truth.to(original.dtype), original)
    return torch.where(free, actual, expected), torch.where(free, actual.double(), truth)


_ROUNDINGS = 4
"""How many times a program is run with every number on its way rounded, to find what roundings do to its results."""

_SLACK = 8
"""How many times as far as roundings have moved a result it may be off: the farthest of a few runs is not the farthest
of all."""


def _spread(before: Graph, operands: Sequence[Any], truth: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns how far, element by element, results move where every number on the way is rounded once."""
    generator = torch.Generator().manual_seed(SEED)
    spread = [torch.zeros_like(true) for true in truth]
    for _ in range(_ROUNDINGS):
        moved = run_in_float64(before, operands, shaken=generator)
        for at, (one, true) in enumerate(zip(moved, truth, strict=True)):
            if true.is_floating_point() and one.shape == true.shape:
                spread[at] = torch.maximum(spread[at], (one - true).abs())
    return spread


def _conditioned(
    actual: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor], truth: torch.Tensor, spread: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what is expected and true of a replacement where roundings of the original make the same error."""
    if not actual.is_floating_point():
        return expected
    explained = (actual.double() - truth).abs() <= _SLACK * spread
    right, true = expected
    return torch.where(explained, actual, right), torch.where(explained, actual.double(), true)


def overflows(original: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> bool:
    """Whether an element is a number in float64 and none in the dtypes of the program."""
    return any(bool((~one.isfinite() & true.isfinite()).any()) for one, true in zip(original, truth, strict=True))


def run(graph: Graph, operands: Sequence[Any], seed: int = SEED) -> Any:
    """Runs a graph on copies of operands.

    Raises:
        RuntimeError: an op fails, or gives nothing, as cuDNN's attention does for a batch of 0.
    """
    with torch.no_grad(), same_draws(seed):
        results = Interpreter(ROOT, graph=graph).run(*map(clone, operands))
    if any(one is None for one in results):
        raise RuntimeError("an op returns no tensor")
    return results


def run_in_float64(
    graph: Graph, operands: Sequence[Any], seed: int = SEED, shaken: torch.Generator | None = None
) -> list[Any]:
    """Runs a graph on copies of operands, everything widened to float64; `shaken` as interpret_in_float64 takes it."""
    device = next((operand.device.type for operand in operands if isinstance(operand, torch.Tensor)), "cpu")
    with torch.no_grad(), same_draws(seed), torch.autocast(device, enabled=False):
        return interpret_in_float64(ROOT, [clone(operand) for operand in operands], graph, shaken)


def clone(value: Any) -> Any:
    """Returns a copy of the same strides, of which every element may be written."""
    if not isinstance(value, torch.Tensor):
        return value
    return copied(value.detach())


def copied(value: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the same strides, which dropout draws by on CUDA. Gradients flow through it."""
    if 0 in value.stride():
        return value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


@contextmanager
def same_draws(seed: int = SEED) -> Iterator[None]:
    """Random ops of the block draw what they draw in any other of the seed; the caller's generators are left alone."""
    # torch.manual_seed would write down the stack for accelerators that are not there: it takes milliseconds.
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
    """Draws what the gradients of results are taken to be; the same numbers for every dtype."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = (torch.randn(result.shape, generator=generator) for result in results)
    # Rounded to what the model's own dtypes hold, so that the truth is given the same.
    return [one.to(torch.bfloat16).to(result) for one, result in zip(drawn, results, strict=True)]


def difference(
    actual: Sequence[torch.Tensor],
    original: Sequence[torch.Tensor],
    truth: Sequence[torch.Tensor],
    by_truth: bool = False,
) -> str:
    """Says how what a replacement gives differs from what it replaces; nothing when it does not.

    Args:
        actual: what the replacement gives.
        original: what the matched ops give.
        truth: what the matched ops give in float64; see tolerance.py.
        by_truth: as `compare` takes it.
    """
    for position, (one, other, true) in enumerate(zip(actual, original, truth, strict=True)):
        row = compare(one, other, true, by_truth=by_truth)
        if not row.ok:
            name = "the result" if len(actual) == 1 else f"result {position}"
            return f"{name} differs{_first(one, other)}: {row.reason}"
    return ""


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

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

from fuseconv.tolerance import TOLERANCES, compare
from fuseconv.truth import interpret_in_float64

SEED = 0

CANNOT_RUN = (RuntimeError, IndexError)
"""What ops raise that do not take their operands."""

ROOT = torch.nn.Module()
"""What the graphs read attributes of: they have none."""


def judge(before: Graph, after: Graph, operands: Sequence[Any], *, narrow: bool) -> str:
    """Says how what `after` gives differs from what `before` gives; nothing when it does not.

    The truth is `before` in float64, and the tolerances are those of tolerance.py. Operands that `before` cannot run
    on, as an index out of range, show nothing. Numbers that are not ordinary may overflow in a narrow dtype in one form
    and not in the other: then both forms must agree in float64.

    Args:
        before: what is replaced; its output is a tuple of tensors.
        after: what is put in its place.
        operands: what the placeholders of both stand for, in order; they are not written.
        narrow: whether the operands are ordinary numbers, to be judged in the dtypes of the program. Even of those, one
            that overflows in the original and not in truth is judged in float64.
    """
    try:
        original = run(before, operands)
        truth = run_in_float64(before, operands)
    except CANNOT_RUN:
        return ""
    try:
        found = difference(run(after, operands), original, truth)
        if found and (not narrow or overflows(original, truth)):
            found = difference(run_in_float64(after, operands), truth, truth)
    except CANNOT_RUN as problem:
        return f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"
    return found


def overflows(original: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> bool:
    """Whether an element is a number in float64 and none in the dtypes of the program."""
    return any(bool((~one.isfinite() & true.isfinite()).any()) for one, true in zip(original, truth, strict=True))


def run(graph: Graph, operands: Sequence[Any], seed: int = SEED) -> Any:
    """Runs a graph on copies of operands."""
    with torch.no_grad(), same_draws(seed):
        return Interpreter(ROOT, graph=graph).run(*map(clone, operands))


def run_in_float64(graph: Graph, operands: Sequence[Any], seed: int = SEED) -> list[Any]:
    """Runs a graph on copies of operands, everything widened to float64."""
    device = next((operand.device.type for operand in operands if isinstance(operand, torch.Tensor)), "cpu")
    with torch.no_grad(), same_draws(seed), torch.autocast(device, enabled=False):
        return interpret_in_float64(ROOT, [clone(operand) for operand in operands], graph)


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


def difference(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> str:
    """Says how what a replacement gives differs from what it replaces; nothing when it does not.

    Args:
        actual: what the replacement gives.
        original: what the matched ops give.
        truth: what the matched ops give in float64; see tolerance.py.
    """
    for position, (one, other, true) in enumerate(zip(actual, original, truth, strict=True)):
        row = compare(one, other, true)
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
    return f" at {place}, {actual[index].item()!r} for {original[index].item()!r}"

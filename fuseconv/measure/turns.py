"""Times two lists of calls in turn, on the inputs that a bundle keeps for it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fuseconv.bundle.manifest import read_manifest
from fuseconv.measure.pairs import FEWEST, Ratio, ratio_of_logs
from fuseconv.measure.timing import synchronise
from fuseconv.parity.reference import read_reference, tried_of
from fuseconv.runtime.model import load_target

Inputs = tuple[torch.Tensor, ...]

Call = Callable[[], object]

WARM_UP = 4
"""The number of untimed calls: lazy loading, timing of kernels, the capture of a CUDA graph."""

USUAL = 31
"""The number of pairs that is measured even if it takes longer than asked for. The interval then leaves out 7 at each
side; with `FEWEST` pairs, a single disturbed one would hide every difference."""

MOST = 101
"""The largest number of pairs."""

PATIENCE = 4
"""By what factor the usual number of pairs may exceed the time that is asked for."""


@dataclass(frozen=True)
class Times:
    """The times of one target.

    Attributes:
        base: the median in microseconds, on the first case.
        challenger: that of the challenger.
        ratio: the time of the challenger divided by that of the base, as the geometric mean over cases.
    """

    base: float
    challenger: float
    ratio: Ratio


@dataclass(frozen=True)
class Duel:
    """A challenger against the base.

    Attributes:
        ratio: the time of the challenger divided by that of the base, as the geometric mean over targets and cases.
        times: the times of each target.
        cases: the time of the challenger divided by that of the base in each case, as the geometric mean over targets.
    """

    ratio: Ratio
    times: dict[str, Times]
    cases: tuple[Ratio, ...] = ()

    @property
    def wins(self) -> bool:
        """Whether the challenger is faster beyond the noise, and in no target slower."""
        return self.ratio.faster and not any(times.ratio.slower for times in self.times.values())


def timed_inputs(bundle: Path, reference: Path) -> list[Inputs]:
    """Returns the inputs of the given case, and those of the largest ordinary case if it is larger.

    Args:
        bundle: the folder of a bundle that was just sealed.
        reference: the file with the cases.
    """
    references = tried_of(read_reference(reference, read_manifest(bundle).contract))
    inputs = [one.case.inputs for one in references if one.case.kind == "ordinary"]

    def size(tensors: Inputs) -> int:
        return sum(tensor.numel() for tensor in tensors)

    largest = max(inputs, key=size)
    return [inputs[0]] if size(largest) <= size(inputs[0]) else [inputs[0], largest]


def target_calls(folder: Path, targets: Sequence[str], inputs: Sequence[Inputs]) -> list[Call]:
    """Loads the targets of a bundle as `load` does, with CUDA graphs where they are the default.

    Returns:
        One call per target and input, ordered by target.
    """
    manifest = read_manifest(folder)
    models = [load_target(folder, manifest, target, cuda_graphs="auto") for target in targets]
    return [partial(model, *tensors) for model in models for tensors in inputs]


def timed(base: Sequence[Call], challenger: Sequence[Call], targets: Sequence[str], seconds: float) -> Duel:
    """Times two lists of calls in turn.

    Args:
        base: the calls of the base, ordered by target, the same number for each.
        challenger: those of the challenger.
        targets: the names under which the times are returned.
        seconds: how long to measure, about. At least `FEWEST` pairs are measured, however long they take.
    """
    for call in (*base, *challenger):
        for _ in range(WARM_UP):
            call()
    pairs: list[list[tuple[float, float]]] = []
    start = time.perf_counter()
    while not _is_enough(len(pairs), (time.perf_counter() - start) / seconds):
        # The order alternates: what runs second finds other caches and another clock of the processor.
        order = (1, 0) if len(pairs) % 2 else (0, 1)
        pairs.append([_pair(both, order) for both in zip(base, challenger, strict=True)])
    cases = len(base) // len(targets)

    def over(calls: slice) -> Ratio:
        """Returns the geometric mean over some of the calls."""
        logs = [[math.log(other / one) for one, other in pair[calls]] for pair in pairs]
        return ratio_of_logs(list(map(statistics.fmean, logs)))

    def median(at: int, side: int) -> float:
        return statistics.median(pair[at][side] for pair in pairs)

    return Duel(
        over(slice(None)),
        {
            target: Times(median(at, 0), median(at, 1), over(slice(at, at + cases)))
            for at, target in zip(range(0, len(base), cases), targets, strict=True)
        },
        tuple(over(slice(at, None, cases)) for at in range(cases)),
    )


def _is_enough(pairs: int, spent: float) -> bool:
    """Returns whether the pairs are enough, after a multiple of the time that was asked for."""
    wanted = MOST if spent < 1 else USUAL if spent < PATIENCE else FEWEST
    return pairs >= wanted


def _pair(calls: tuple[Call, Call], order: Sequence[int]) -> tuple[float, float]:
    """Returns the times of two calls in microseconds, made in the given order."""
    times = [0.0, 0.0]
    for at in order:
        synchronise()
        start = time.perf_counter()
        calls[at]()
        synchronise()
        times[at] = (time.perf_counter() - start) * 1e6
    return times[0], times[1]

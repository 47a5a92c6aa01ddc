"""Times two lists of calls with interleaving, on inputs from the reference cases of a bundle."""

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
"""The number of untimed warm-up calls, for lazy loading, kernel autotuning and the capture of a CUDA graph."""

USUAL = 31
"""The number of pairs that are measured even if that takes up to `PATIENCE` times the requested time. The interval then
leaves out 7 pairs on each side. With only `FEWEST` pairs, a single disturbed pair would hide every difference."""

MOST = 101
"""The maximum number of pairs."""

PATIENCE = 4
"""Measuring the usual number of pairs may take up to this many times the requested time."""


@dataclass(frozen=True)
class Times:
    """The times of one target in the base and in the challenger.

    Attributes:
        base: the median time of a call of the base in microseconds, in the first case.
        challenger: the median time of a call of the challenger in microseconds, in the first case.
        ratio: the time of the challenger divided by the time of the base, as the geometric mean over cases.
    """

    base: float
    challenger: float
    ratio: Ratio


@dataclass(frozen=True)
class Duel:
    """The result of timing a challenger against the base.

    Attributes:
        ratio: the time of the challenger divided by the time of the base, as the geometric mean over targets and cases.
        times: the times of each target, by name.
        cases: for each case, the time of the challenger divided by the time of the base, as the geometric mean over
            targets.
    """

    ratio: Ratio
    times: dict[str, Times]
    cases: tuple[Ratio, ...] = ()

    @property
    def wins(self) -> bool:
        """Whether the challenger is faster overall, and slower in no target, by more than the noise."""
        return self.ratio.faster and not any(times.ratio.slower for times in self.times.values())


def timed_inputs(bundle: Path, reference: Path) -> list[Inputs]:
    """Reads the inputs of the given case, and also of the largest ordinary case if its inputs have more elements.

    Args:
        bundle: the folder of the bundle. Its files are not verified again.
        reference: the path of the file with the reference cases.
    """
    references = tried_of(read_reference(reference, read_manifest(bundle).contract))
    inputs = [one.case.inputs for one in references if one.case.kind == "ordinary"]

    def size(tensors: Inputs) -> int:
        return sum(tensor.numel() for tensor in tensors)

    largest = max(inputs, key=size)
    return [inputs[0]] if size(largest) <= size(inputs[0]) else [inputs[0], largest]


def target_calls(folder: Path, targets: Sequence[str], inputs: Sequence[Inputs]) -> list[Call]:
    """Loads targets of a bundle with `cuda_graphs="auto"`, and returns calls of the targets.

    Returns:
        One call per target and input, ordered by target.
    """
    manifest = read_manifest(folder)
    models = [load_target(folder, manifest, target, cuda_graphs="auto") for target in targets]
    return [partial(model, *tensors) for model in models for tensors in inputs]


def timed(base: Sequence[Call], challenger: Sequence[Call], targets: Sequence[str], seconds: float) -> Duel:
    """Times two lists of calls with interleaving, and returns the result.

    Args:
        base: the calls of the base, ordered by target, with the same number of calls for each target.
        challenger: the calls of the challenger, in the same order.
        targets: the names of the targets for the result, in the order of the calls.
        seconds: the approximate time to measure, in seconds. At least `FEWEST` pairs are measured, however long that
            takes. At most `MOST` pairs are measured.
    """
    for call in (*base, *challenger):
        for _ in range(WARM_UP):
            call()
    pairs: list[list[tuple[float, float]]] = []
    start = time.perf_counter()
    while not _is_enough(len(pairs), (time.perf_counter() - start) / seconds):
        # The order alternates, because the second call of a pair finds different caches and another clock frequency.
        order = (1, 0) if len(pairs) % 2 else (0, 1)
        pairs.append([_pair(both, order) for both in zip(base, challenger, strict=True)])
    cases = len(base) // len(targets)

    def over(calls: slice) -> Ratio:
        """Returns the ratio of the times, as the geometric mean over the calls in a slice."""
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
    """Returns whether enough pairs were measured. `spent` is the time so far divided by the requested time."""
    wanted = MOST if spent < 1 else USUAL if spent < PATIENCE else FEWEST
    return pairs >= wanted


def _pair(calls: tuple[Call, Call], order: Sequence[int]) -> tuple[float, float]:
    """Makes two calls in the given order, and returns their times in microseconds, in the order of `calls`."""
    times = [0.0, 0.0]
    for at in order:
        synchronise()
        start = time.perf_counter()
        calls[at]()
        synchronise()
        times[at] = (time.perf_counter() - start) * 1e6
    return times[0], times[1]

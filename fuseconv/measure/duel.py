"""Times bundles against a base in one new process: the same targets of each, in turn, on reference cases.

The base stays loaded, and the challengers are loaded one after the other, so that two models at most share the memory.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter

from fuseconv.bundle.manifest import read_manifest
from fuseconv.measure.pairs import FEWEST, Ratio, ratio_of_logs
from fuseconv.measure.separate import measured
from fuseconv.measure.timing import synchronise
from fuseconv.parity.reference import Reference, read_reference, tried_of
from fuseconv.runtime.model import load_target

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
    """

    ratio: Ratio
    times: dict[str, Times]

    @property
    def wins(self) -> bool:
        """Whether the challenger is faster beyond the noise, and in no target slower."""
        return self.ratio.faster and not any(times.ratio.slower for times in self.times.values())


_DUEL = TypeAdapter(Duel)


def duels(
    base: Path, challengers: Sequence[Path], targets: Sequence[str], reference: Path, *, seconds: float, threads: int
) -> list[Duel]:
    """Times challengers against a base.

    Args:
        base: the folder of a bundle that was just sealed.
        challengers: the folders of the others.
        targets: the targets to call, of each bundle.
        reference: the file with the inputs: the given case, and the largest.
        seconds: how long each challenger is timed, about. At least `FEWEST` pairs are measured, however long they take.
        threads: the number of threads of torch.

    Raises:
        UpstreamError: the process failed.
    """
    request = {
        "base": str(base),
        "challengers": list(map(str, challengers)),
        "targets": list(targets),
        "reference": str(reference),
        "seconds": seconds,
        "threads": threads,
    }
    what = f"time the target {' and '.join(targets)}"
    found = measured("fuseconv.measure.duel", request, what=what, where=str(base))
    return [_DUEL.validate_python(one) for one in found]


def main(asked: str, told: str) -> None:
    """Times bundles in this process. `asked` is the file with the request, `told` that of the result."""
    request = json.loads(Path(asked).read_text())
    torch.set_num_threads(request["threads"])
    base, targets = Path(request["base"]), request["targets"]
    cases = _cases(tried_of(read_reference(Path(request["reference"]), read_manifest(base).contract)))
    ours = _calls(base, targets, cases)
    found = []
    with torch.no_grad():
        for folder in request["challengers"]:
            theirs = _calls(Path(folder), targets, cases)
            found.append(_DUEL.dump_python(_timed(ours, theirs, targets, request["seconds"])))
            del theirs
    Path(told).write_text(json.dumps(found))


def _cases(references: Sequence[Reference]) -> list[tuple[torch.Tensor, ...]]:
    """Returns the inputs of the given case, and those of the largest ordinary case if it is larger."""
    inputs = [one.case.inputs for one in references if one.case.kind == "ordinary"]

    def size(tensors: tuple[torch.Tensor, ...]) -> int:
        return sum(tensor.numel() for tensor in tensors)

    largest = max(inputs, key=size)
    return [inputs[0]] if size(largest) <= size(inputs[0]) else [inputs[0], largest]


def _calls(
    folder: Path, targets: Sequence[str], cases: Sequence[tuple[torch.Tensor, ...]]
) -> list[Callable[[], object]]:
    """Loads the targets of a bundle as `load` does, with CUDA graphs where they are the default."""
    manifest = read_manifest(folder)
    models = [load_target(folder, manifest, target, cuda_graphs="auto") for target in targets]
    return [lambda model=model, case=case: model(*case) for model in models for case in cases]  # type: ignore[misc]


def _timed(
    base: Sequence[Callable[[], object]],
    challenger: Sequence[Callable[[], object]],
    targets: Sequence[str],
    limit: float,
) -> Duel:
    for call in (*base, *challenger):
        for _ in range(WARM_UP):
            call()
    pairs: list[list[tuple[float, float]]] = []
    start = time.perf_counter()
    while not _is_enough(len(pairs), (time.perf_counter() - start) / limit):
        # The order alternates: what runs second finds other caches and another clock of the processor.
        order = (1, 0) if len(pairs) % 2 else (0, 1)
        pairs.append([_pair(both, order) for both in zip(base, challenger, strict=True)])
    cases = len(base) // len(targets)

    def over(first: int, last: int) -> Ratio:
        """Returns the geometric mean over some of the calls."""
        logs = [[math.log(other / one) for one, other in pair[first:last]] for pair in pairs]
        return ratio_of_logs(list(map(statistics.fmean, logs)))

    def median(at: int, side: int) -> float:
        return statistics.median(pair[at][side] for pair in pairs)

    return Duel(
        over(0, len(base)),
        {
            target: Times(median(at, 0), median(at, 1), over(at, at + cases))
            for at, target in zip(range(0, len(base), cases), targets, strict=True)
        },
    )


def _is_enough(pairs: int, spent: float) -> bool:
    """Returns whether the pairs are enough, after a multiple of the time that was asked for."""
    wanted = MOST if spent < 1 else USUAL if spent < PATIENCE else FEWEST
    return pairs >= wanted


def _pair(calls: tuple[Callable[[], object], Callable[[], object]], order: Sequence[int]) -> tuple[float, float]:
    """Returns the times of two calls in microseconds, made in the given order."""
    times = [0.0, 0.0]
    for at in order:
        synchronise()
        start = time.perf_counter()
        calls[at]()
        synchronise()
        times[at] = (time.perf_counter() - start) * 1e6
    return times[0], times[1]


if __name__ == "__main__":
    main(*sys.argv[1:])

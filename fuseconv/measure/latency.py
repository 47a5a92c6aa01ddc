"""Measures the speed of a bundle's targets on this machine, and of the original model if one is given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import Manifest, open_bundle
from fuseconv.contract.inputs import draw, example_sizes, from_file
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UsageError
from fuseconv.measure import busy
from fuseconv.measure.cold_start import ColdStart, cold_start
from fuseconv.measure.original import original_calls, read_original
from fuseconv.measure.pairs import interval
from fuseconv.measure.timing import samples, synchronise
from fuseconv.measure.ways import WAYS
from fuseconv.processes.forked import TIME_LIMIT
from fuseconv.runtime.choosing_targets import choose_target
from fuseconv.runtime.model import load_target
from fuseconv.sources import Options

ROUNDS = 101

DEVIATIONS = 1.96
"""The number of standard deviations that gives a 95 % confidence interval of the median."""


@dataclass(frozen=True)
class Latency:
    """The warm latency of one target or of the original model.

    Attributes:
        name: the name of the target. For the original model, `eager` or `compile`.
        median_ms: the median latency over the rounds in milliseconds. Each call waits for its result, also on a GPU.
        p90_ms: the 90th percentile of the latency in milliseconds.
        p99_ms: the 99th percentile of the latency in milliseconds.
        calls_per_second: the throughput of consecutive calls. On a GPU, a call does not wait for the previous result.
        cold: the cold start, measured in a separate process. None for the original model.
        low_ms: the lower end of the 95 % confidence interval of the median, in milliseconds. None if there are too few
            rounds for an interval.
        high_ms: the upper end of this interval, in milliseconds. None if there are too few rounds.
    """

    name: str
    median_ms: float
    p90_ms: float
    p99_ms: float
    calls_per_second: float
    cold: ColdStart | None
    low_ms: float | None = None
    high_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Latencies:
    """The speed of a bundle.

    Attributes:
        inputs: the dtype and shape of each input, by name.
        rounds: the number of timed calls of each target and peer. Each round calls each of them once.
        rows: one row per target, then one row per peer.
        failures: maps the name of each target that does not run on this machine to its error.
        notes: reasons why the times are less certain, for example that other processes used the machine. May be empty.
    """

    inputs: Mapping[str, str]
    rounds: int
    rows: tuple[Latency, ...]
    failures: Mapping[str, FuseconvError]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "inputs": dict(self.inputs),
            "rounds": self.rounds,
            "rows": [row.to_json() for row in self.rows],
            "failures": {name: error.what for name, error in self.failures.items()},
            "notes": list(self.notes),
        }


def measure(
    bundle: str | Path,
    *,
    target: Sequence[str] = (),
    rounds: int = ROUNDS,
    sizes: Mapping[str, int] | None = None,
    against: Path | None = None,
    peers: Sequence[str] = WAYS[:1],
    options: Options | None = None,
    time_limit: float = TIME_LIMIT,
) -> Latencies:
    """Measures the latency, throughput and cold start of a bundle's targets, with interleaved calls.

    Args:
        bundle: the folder of the bundle.
        target: the names of the targets. Default: all targets of the bundle.
        rounds: the number of timed calls of each target and peer.
        sizes: the size of each dim by name. A dim that is not named gets its example size from the contract.
        against: the path of the original model, which is then measured as well. None to measure only the targets.
        peers: the ways to run the original model, from `eager` and `compile`.
        options: how to read the original model. `inputs_file` is the path of the file with the inputs of the calls. If
            `inputs_file` is not set, the inputs are random.
        time_limit: the time in seconds in which a target must load and return its first result. A target that takes
            longer has failed.

    Raises:
        UsageError: the bundle, target or dim does not exist, or `against` is a different model.
        ContractError: the inputs or sizes violate the contract.
        FuseconvError: no target runs on this machine. The first target's error is raised.
    """
    folder, options = Path(bundle).absolute(), options or Options()
    chosen = ("--peer",) if tuple(peers) != WAYS[:1] else ()
    replace(options, inputs_file=None).require_original(against, *chosen)
    manifest = open_bundle(folder)
    names = [choose_target(manifest, name, folder) for name in target] or sorted(manifest.targets)
    inputs = chosen_inputs(manifest.contract, options.inputs_file, sizes or {})
    gpu = busy.gpu_note() if manifest.contract.device == "cuda" else None
    originals = {} if against is None else _originals(against, manifest, peers, inputs, options)
    processors = busy.Processors()
    calls: dict[str, Callable[[], object]] = {}
    failures: dict[str, FuseconvError] = {}
    starts: dict[str, ColdStart] = {}
    for name in names:
        try:
            starts[name] = cold_start(folder, name, inputs, time_limit)  # first, because it ends if the target hangs
            calls[name] = partial(load_target(folder, manifest, name), *inputs)
        except FuseconvError as error:
            failures[name] = error
    if not calls:
        raise next(iter(failures.values()))
    calls |= originals
    with torch.no_grad():
        times = samples(calls, rounds=rounds)
        rates = {name: _rate(call, rounds) for name, call in calls.items()}
    notes = tuple(filter(None, (gpu, processors.note())))
    rows = tuple(_latency(name, times[name], rates[name], starts.get(name)) for name in calls)
    given = zip(manifest.contract.inputs, inputs, strict=True)
    called = {spec.name: f"{spec.dtype}[{','.join(map(str, tensor.shape))}]" for spec, tensor in given}
    return Latencies(called, rounds, rows, failures, notes)


def chosen_inputs(contract: Contract, file: Path | None, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """Returns the inputs from a file, or random inputs. Dims that are not in `sizes` get their example sizes.

    Raises:
        UsageError: both sizes and a file are given, a dim does not exist, or a size is not allowed.
        ContractError: the inputs violate the contract.
    """
    if file is not None and sizes:
        raise UsageError(
            "--shape cannot be combined with --inputs: the tensors in the file determine the sizes",
            where="--shape",
            fix="remove --shape or --inputs",
        )
    if file is not None:
        return tuple(from_file(file, contract).values())
    if unknown := [name for name in sizes if name not in contract.dims()]:
        known = ", ".join(map(str, contract.dims().values()))
        raise UsageError(
            f"the contract has no dim {unknown[0]}",
            where=f"--shape {unknown[0]}={sizes[unknown[0]]}",
            fix=f"its dims are {known}" if known else "remove --shape: every size of the contract is static",
        )
    for dim in contract.dims().values():
        if not dim.min <= sizes.get(dim.name, dim.min) <= dim.max:
            size = sizes[dim.name]
            raise UsageError(
                f"the size {size} is outside {dim}",
                where=f"--shape {dim.name}={size}",
                fix="choose a size in this range",
            )
        if sizes.get(dim.name, dim.min) % dim.step:
            size = sizes[dim.name]
            fix = f"choose {dim.allowed(size)}"
            raise UsageError(
                f"the size {size} is not a multiple of {dim.step}", where=f"--shape {dim.name}={size}", fix=fix
            )
    return draw(contract, {**example_sizes(contract), **sizes}, seed=0)


def percentile(times: Sequence[float], part: int) -> float:
    """Returns the smallest of the times that is at least as long as `part` % of all times."""
    return sorted(times)[max(math.ceil(len(times) * part / 100), 1) - 1]


def _latency(name: str, times: Sequence[float], rate: float, cold: ColdStart | None) -> Latency:
    low, high = interval(times, DEVIATIONS) or (None, None)
    return Latency(name, percentile(times, 50), percentile(times, 90), percentile(times, 99), rate, cold, low, high)


def _originals(
    against: Path, manifest: Manifest, peers: Sequence[str], inputs: tuple[torch.Tensor, ...], options: Options
) -> dict[str, Callable[[], object]]:
    subject = read_original(against, manifest, options)
    return {peer: original_calls(subject, peer, [inputs])[0] for peer in peers}


def _rate(call: Callable[[], object], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    synchronise()
    return rounds / (time.perf_counter() - start)

"""How fast a bundle's own targets are on this machine, beside the original model if it is given."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fuseconv import sources
from fuseconv.bundle.manifest import Manifest, open_bundle
from fuseconv.contract.inputs import draw, example_sizes, from_file
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UpstreamError, UsageError
from fuseconv.measure.cold_start import ColdStart, cold_start
from fuseconv.measure.timing import samples, synchronise
from fuseconv.parity import verification
from fuseconv.program.calling import arguments
from fuseconv.runtime.model import choose_target, load_target
from fuseconv.sources import Options

PEERS = ("eager", "compile")
"""How the original model can be run: as it is, or by torch.compile."""

ROUNDS = 101

_SHAPE = re.compile(r"^(?P<name>\w+)=(?P<size>\d{1,15})$", re.ASCII)


@dataclass(frozen=True)
class Latency:
    """What calls of one target, or of the original model, take once they are warm.

    Attributes:
        name: the target, `eager` or `compile`.
        median_ms: of the rounds; each waits for the result, so that on a GPU it is latency.
        p90_ms: what 90 % of the rounds do not exceed.
        p99_ms: what 99 % do not exceed.
        calls_per_second: of calls made one after the other without waiting.
        cold: what its first call costs in a process of its own; None for the original model.
    """

    name: str
    median_ms: float
    p90_ms: float
    p99_ms: float
    calls_per_second: float
    cold: ColdStart | None

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Latencies:
    """A bundle timed.

    Attributes:
        inputs: what was called: name to dtype and shape.
        rounds: how many calls of each were timed, in turn.
        rows: one per target, then one per peer.
        failures: targets that do not run here, and why.
    """

    inputs: Mapping[str, str]
    rounds: int
    rows: tuple[Latency, ...]
    failures: Mapping[str, FuseconvError]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "inputs": dict(self.inputs),
            "rounds": self.rounds,
            "rows": [row.to_json() for row in self.rows],
            "failures": {name: error.what for name, error in self.failures.items()},
        }


def measure(
    bundle: str | Path,
    *,
    target: Sequence[str] = (),
    rounds: int = ROUNDS,
    sizes: Mapping[str, int] | None = None,
    against: Path | None = None,
    peers: Sequence[str] = PEERS[:1],
    options: Options | None = None,
) -> Latencies:
    """Times a bundle's targets, and the original model's peers, in turn.

    Args:
        bundle: the folder.
        target: names of targets; by default all that the bundle has.
        rounds: how many calls of each to time.
        sizes: of the contract's dims, in place of those that it was converted with.
        against: the original model.
        peers: how to run that: `eager`, `compile`.
        options: how to read it; `inputs_file` holds the inputs to call with.

    Raises:
        UsageError: there is no such bundle, target or dim, or `against` is another model.
        ContractError: the inputs or sizes are not what the contract says.
        FuseconvError: no target runs here.
    """
    folder, options = Path(bundle).absolute(), options or Options()
    about = [
        *({"--peer"} if tuple(peers) != PEERS[:1] else ()),
        *(flag for flag in options.flags() if flag != "--inputs"),
    ]
    if against is None and about:
        raise UsageError(f"{about[0]} applies only to the original model", where=about[0], fix="add --against MODEL")
    manifest = open_bundle(folder)
    names = [choose_target(manifest, name, folder) for name in target] or sorted(manifest.targets)
    inputs = chosen_inputs(manifest.contract, options.inputs_file, sizes or {})
    calls: dict[str, Callable[[], object]] = {}
    failures: dict[str, FuseconvError] = {}
    starts: dict[str, ColdStart] = {}
    for name in names:
        try:
            calls[name] = _bound(load_target(folder, manifest, name), inputs)
            starts[name] = cold_start(folder, name, inputs)
        except FuseconvError as error:
            failures[name] = error
            calls.pop(name, None)
    if not calls:
        raise next(iter(failures.values()))
    if against is not None:
        calls |= _originals(against, manifest, peers, inputs, options)
    with torch.no_grad():
        times = samples(calls, rounds=rounds)
        rates = {name: _rate(call, rounds) for name, call in calls.items()}
    rows = tuple(_latency(name, times[name], rates[name], starts.get(name)) for name in calls)
    given = zip(manifest.contract.inputs, inputs, strict=True)
    called = {spec.name: f"{spec.dtype}[{','.join(map(str, tensor.shape))}]" for spec, tensor in given}
    return Latencies(called, rounds, rows, failures)


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Parses repeated `--shape` values: `seq=128`.

    Raises:
        UsageError: one is not of that form, or a dim has two sizes.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        match = _SHAPE.match(text)
        if match is None:
            raise UsageError(
                "the size cannot be parsed", where=f"--shape {text!r}", fix="write DIM=SIZE, for example seq=128"
            )
        if sizes.setdefault(match["name"], int(match["size"])) != int(match["size"]):
            raise UsageError(f"the dim {match['name']} has two sizes", where=f"--shape {text!r}", fix="give one")
    return sizes


def chosen_inputs(contract: Contract, file: Path | None, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """Returns the inputs in a file, or draws them at the contract's example sizes, some of them replaced.

    Raises:
        UsageError: there are sizes and a file, or a size is of no dim.
        ContractError: what comes out is not what the contract says.
    """
    if file is not None and sizes:
        raise UsageError(
            "the file of inputs already fixes the sizes", where="--shape", fix="remove --shape or --inputs"
        )
    if file is not None:
        return tuple(from_file(file, contract).values())
    if unknown := [name for name in sizes if name not in contract.dims()]:
        known = ", ".join(map(str, contract.dims().values()))
        raise UsageError(
            f"the contract has no dim {unknown[0]}",
            where=f"--shape {unknown[0]}={sizes[unknown[0]]}",
            fix=f"its dims are {known}" if known else "remove --shape: every size of the contract is fixed",
        )
    for dim in contract.dims().values():
        if not dim.min <= sizes.get(dim.name, dim.min) <= dim.max:
            size = sizes[dim.name]
            raise UsageError(
                f"{size} is outside {dim}", where=f"--shape {dim.name}={size}", fix="choose a size in this range"
            )
        if sizes.get(dim.name, dim.min) % dim.step:
            size = sizes[dim.name]
            fix = f"choose {dim.allowed(size)}"
            raise UsageError(f"{size} is not a multiple of {dim.step}", where=f"--shape {dim.name}={size}", fix=fix)
    return draw(contract, {**example_sizes(contract), **sizes}, seed=0)


def percentile(times: Sequence[float], part: int) -> float:
    """Returns the smallest of the times that `part` % of them do not exceed: one that was measured."""
    return sorted(times)[max(math.ceil(len(times) * part / 100), 1) - 1]


def _latency(name: str, times: Sequence[float], rate: float, cold: ColdStart | None) -> Latency:
    return Latency(name, percentile(times, 50), percentile(times, 90), percentile(times, 99), rate, cold)


def _originals(
    against: Path, manifest: Manifest, peers: Sequence[str], inputs: tuple[torch.Tensor, ...], options: Options
) -> dict[str, Callable[[], object]]:
    subject = sources.read(against, options=verification.as_converted(manifest, against, options))
    positional, keywords = arguments(subject.call, inputs)
    calls: dict[str, Callable[[], object]] = {}
    for peer in peers:
        module = subject.module if peer == "eager" else torch.compile(subject.module)
        calls[peer] = _bound(module, positional, keywords)
        try:
            with torch.no_grad():
                calls[peer]()
        except Exception as error:
            raise UpstreamError(f"the original model failed: {error}", where=f"--peer {peer}") from error
    return calls


def _bound(
    model: Callable[..., object], args: tuple[torch.Tensor, ...], kwargs: Mapping[str, torch.Tensor] | None = None
) -> Callable[[], object]:
    keywords = dict(kwargs or {})
    return lambda: model(*args, **keywords)


def _rate(call: Callable[[], object], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    synchronise()
    return rounds / (time.perf_counter() - start)

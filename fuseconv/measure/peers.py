"""Times the fastest target of a bundle against other ways to run the same model (peers), in one new process."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from fuseconv.bundle.manifest import read_manifest
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.measure.original import original_calls, read_original
from fuseconv.measure.pairs import Ratio
from fuseconv.measure.separate import measured
from fuseconv.measure.timing import interleaved
from fuseconv.measure.turns import WARM_UP, Call, Inputs, target_calls, timed, timed_inputs
from fuseconv.measure.ways import WAYS
from fuseconv.sources import Options, Subject
from fuseconv.untrusted import hub

SECONDS = 3.0
"""The approximate time that is spent on each peer, in seconds."""


@dataclass(frozen=True)
class Versus:
    """The result of timing a bundle's fastest target against a peer.

    Attributes:
        target: the name of the bundle's fastest target.
        peer: the way to run the original model: `eager`, `compile` or `aoti`.
        us: the median time of a call of the target in microseconds, on the given inputs.
        peer_us: the median time of a call of the peer in microseconds, on the given inputs.
        ratio: the time of the target divided by the time of the peer, as the geometric mean over the given inputs and
            the largest inputs.
    """

    target: str
    peer: str
    us: float
    peer_us: float
    ratio: Ratio

    @property
    def loses(self) -> bool:
        """Whether the target is slower than the peer by more than the noise."""
        return self.ratio.slower

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "target": self.target,
            "peer": self.peer,
            "us": round(self.us, 2),
            "peer_us": round(self.peer_us, 2),
            "ratio": round(self.ratio.median, 4),
            "low": round(self.ratio.low, 4),
            "high": round(self.ratio.high, 4),
            "loses": self.loses,
        }


_VERSUS = TypeAdapter(list[Versus])


def against_peers(
    bundle: Path, peers: Sequence[str], model: Path, options: Options, reference: Path, unfused: Path | None
) -> list[Versus]:
    """Times the fastest target of a bundle against each peer with interleaved calls. Returns one result per peer.

    Args:
        bundle: the folder of the bundle. Its files are not verified again.
        peers: the names of the peers, from `ways.PEERS`.
        model: the path of the original model.
        options: how to read the original model. The inputs, dtype and device are read from the bundle instead.
        reference: the path of the file with the reference cases. The inputs of the given case and of the largest case
            are used.
        unfused: the folder of a bundle whose `aoti` target is the captured program without fusions. This target is
            timed as the peer `aoti`. None if `peers` does not contain `aoti`.

    Raises:
        UpstreamError: a peer cannot be run, or the process failed.
    """
    request = {
        "bundle": str(bundle),
        "peers": list(peers),
        "model": str(model if hub.reference(model) else model.absolute()),
        "factory": options.model,
        "trust": sorted(options.trust),
        "reference": str(reference),
        "unfused": None if unfused is None else str(unfused),
        "folder": str(Path.cwd()),
        "path": sys.path,
        "threads": torch.get_num_threads(),
        "seconds": SECONDS,
    }
    what = f"time the bundle against {', '.join(peers)}"
    fix = "free memory that other processes use and try again, or name fewer peers in --not-slower-than"
    told = measured("fuseconv.measure.peers", request, what=what, where=str(model), fix=fix)
    if "failed" in told:
        raise UpstreamError(
            f"the peer {told['failed']} cannot be timed: {told['reason']}",
            where=f"--not-slower-than {told['failed']}",
            fix=f"correct what the message names, or remove {told['failed']} from --not-slower-than",
        )
    return _VERSUS.validate_python(told["versus"])


def main(asked: str, told: str) -> None:
    """Times a bundle in this process. Reads the request from the JSON file `asked`, and writes the result to `told`."""
    request = json.loads(Path(asked).read_text())
    os.chdir(request["folder"])  # the caller's folder, because a model may import its own code
    sys.path += [folder for folder in request["path"] if folder not in sys.path]
    torch.set_num_threads(request["threads"])
    bundle = Path(request["bundle"])
    inputs = timed_inputs(bundle, Path(request["reference"]))
    with torch.no_grad():
        target = _fastest(bundle, inputs)
        result = _versus(target, target_calls(bundle, [target], inputs), request, inputs)
    Path(told).write_text(json.dumps(result))


def _fastest(bundle: Path, inputs: Sequence[Inputs]) -> str:
    """Times all targets, and returns the target with the smallest geometric mean of the times over the inputs."""
    names = list(read_manifest(bundle).targets)

    def spent(target: str) -> float:
        calls = target_calls(bundle, [target], inputs)
        times = interleaved({str(at): call for at, call in enumerate(calls)}, warmup=WARM_UP)
        return sum(map(math.log, times.values()))

    return min(names, key=spent) if len(names) > 1 else names[0]


def _versus(target: str, ours: Sequence[Call], request: dict[str, Any], inputs: Sequence[Inputs]) -> dict[str, Any]:
    """Times the target against each peer. Returns the results, or the name of the first failing peer and the reason."""
    subject: Subject | None = None
    found = []
    for peer in request["peers"]:
        try:
            if peer in WAYS and subject is None:
                subject = _original(request)
            theirs = _peer_calls(peer, subject, request, inputs)
        except FuseconvError as error:
            return {"failed": peer, "reason": error.what}
        times = timed(theirs, ours, [target], request["seconds"]).times[target]
        found.append(Versus(target, peer, times.challenger, times.base, times.ratio))
    return {"versus": _VERSUS.dump_python(found)}


def _original(request: dict[str, Any]) -> Subject:
    options = Options(model=request["factory"], trust=frozenset(request["trust"]))
    return read_original(Path(request["model"]), read_manifest(Path(request["bundle"])), options)


def _peer_calls(peer: str, subject: Subject | None, request: dict[str, Any], inputs: Sequence[Inputs]) -> list[Call]:
    if subject is not None and peer in WAYS:
        return original_calls(subject, peer, inputs)
    return target_calls(Path(request["unfused"]), [peer], inputs)

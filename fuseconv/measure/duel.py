"""Times bundles (challengers) against one bundle (the base) in a new process, with interleaved calls.

The same targets of both bundles are called on the same inputs. The base stays loaded. The challengers are loaded one
after the other, so that memory holds at most two bundles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter

from fuseconv.bundle.manifest import read_manifest
from fuseconv.contract.inputs import draw
from fuseconv.measure.separate import measured
from fuseconv.measure.turns import Duel, target_calls, timed, timed_inputs

_DUEL = TypeAdapter(Duel)


def duels(
    base: Path,
    challengers: Sequence[Path],
    targets: Sequence[str],
    reference: Path,
    *,
    seconds: float,
    threads: int,
    sizes: Sequence[Mapping[str, int]] = (),
) -> list[Duel]:
    """Times each challenger against a base, and returns one result per challenger, in order.

    Args:
        base: the folder of the base bundle. Its files are not verified again.
        challengers: the folders of the challenger bundles.
        targets: the names of the targets to call in each bundle.
        reference: the path of the file with the reference cases. The inputs of the given case and of the largest case
            are used.
        seconds: the approximate time that is spent on each challenger, in seconds. `turns.timed` gives the limits.
        threads: the number of threads that torch uses.
        sizes: for each call to time, the size of each dim by name. The inputs of these calls are random. Empty to use
            the inputs in `reference`.

    Raises:
        UpstreamError: the new process failed.
    """
    request = {
        "base": str(base),
        "challengers": list(map(str, challengers)),
        "targets": list(targets),
        "reference": str(reference),
        "seconds": seconds,
        "threads": threads,
        "sizes": list(map(dict, sizes)),
    }
    what = f"time the target {' and '.join(targets)}"
    found = measured("fuseconv.measure.duel", request, what=what, where=str(base))
    return [_DUEL.validate_python(one) for one in found]


def main(asked: str, told: str) -> None:
    """Times bundles in this process. Reads the request from the JSON file `asked`, and writes results to `told`."""
    request = json.loads(Path(asked).read_text())
    torch.set_num_threads(request["threads"])
    base, targets = Path(request["base"]), request["targets"]
    contract = read_manifest(base).contract
    drawn = [draw(contract, one, seed=0) for one in request["sizes"]]
    inputs = drawn or timed_inputs(base, Path(request["reference"]))
    ours = target_calls(base, targets, inputs)
    found = []
    with torch.no_grad():
        for folder in request["challengers"]:
            theirs = target_calls(Path(folder), targets, inputs)
            found.append(_DUEL.dump_python(timed(ours, theirs, targets, request["seconds"])))
            del theirs
    Path(told).write_text(json.dumps(found))

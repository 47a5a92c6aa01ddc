"""How long the host is busy per call of a bundle: with CUDA graphs, without, and with the check of the inputs alone.

    python bench/host.py OUT.json BUNDLE...

Calls are enqueued back to back, so a time is the host's where the device keeps up, and else the device's. Each target
is called on the bundle's own reference inputs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from record import Row, machine, write

from fuseconv.bundle.manifest import read_manifest
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of
from fuseconv.runtime.model import load

CALLS = 300
"""Calls per measurement; few enough that no queue of launches fills up."""

ROUNDS = 9


def microseconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median microseconds per call of each, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for measured in range(-1, ROUNDS):  # the first round captures graphs and optimises
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if measured >= 0:
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(path: Path, target: str) -> Row:
    """Returns the row of one target of a bundle."""
    graphed, plain = (load(path, target, "cuda", cuda_graphs=graphs) for graphs in (True, False))
    inputs = tried_of(read_reference(path / REFERENCE, graphed.contract))[0].case.inputs
    calls = {
        "graph": lambda: graphed(*inputs),
        "no graph": lambda: plain(*inputs),
        "check": lambda: graphed.contract.bind(inputs, {}),
    }
    return {"bundle": path.name, "target": target, "host_us": microseconds(calls)}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.bundles:
        for target in ("aoti", "torchscript"):
            if target in read_manifest(path).targets:
                rows.append(measure(path, target))
                print(rows[-1], flush=True)
    write(arguments.out, rows, machine("cuda"), ["bundle", "target"])


if __name__ == "__main__":
    main()

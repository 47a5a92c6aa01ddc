"""Times calls of sizes that a process has not seen before, beside calls of the same sizes that it has, on CUDA.

    python bench/new_sizes.py bench/results/h100_new_sizes.json

BERT-base in f16 with random weights, a dynamic batch and dynamic tokens, is converted as a user does: its tactics are
measured at a ladder of sizes. Each target is then loaded in a process of its own, without CUDA graphs, and called at
each of 200 random sizes. After each new size comes a size that was called before, so that both are timed under the same
conditions. With `--warm` the model is called at a ladder of sizes first, as `load(warm_seconds=)` does. Every call is
awaited; times are wall clock, and those of the host alone, until its last launch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from graph_overhead import bundle
from record import machine, write

from fuseconv.runtime.model import load

CALLS = 200


def measure(path: Path, target: str, warm: float) -> dict[str, float]:
    """Returns the milliseconds of calls at new and at known sizes, and the MiB reserved after all, in this process."""
    model, draw = load(path, target, cuda_graphs=False, warm_seconds=warm), random.Random(1)  # noqa: S311
    sizes = [(draw.randint(1, 8), draw.randint(8, 128)) for _ in range(CALLS)]

    def call(batch: int, tokens: int) -> tuple[float, float]:
        ids = torch.randint(0, 30000, (batch, tokens), device="cuda")
        mask = torch.ones_like(ids)
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(ids, mask)
        launched = time.perf_counter()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3, (launched - start) * 1e3

    for tokens in (77, 78):  # lazy loading, and TorchScript's optimization in the second call
        call(3, tokens)
    call(*sizes[0])
    times: dict[str, list[tuple[float, float]]] = {"new": [], "known": []}
    for at in range(1, CALLS):
        times["new"].append(call(*sizes[at]))
        times["known"].append(call(*draw.choice(sizes[:at])))
    found = {"reserved_mib": 0.0}
    for name, both in times.items():
        whole, host = (sorted(of) for of in zip(*both, strict=True))
        found[f"{name}_p50_ms"] = round(statistics.median(whole), 3)
        found[f"{name}_p99_ms"] = round(whole[int(0.99 * len(whole))], 3)
        found[f"{name}_host_p50_ms"] = round(statistics.median(host), 3)
    found["reserved_mib"] = torch.cuda.memory_reserved() >> 20
    return found


def main() -> None:
    """Converts, measures each target in a process of its own, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--targets", nargs="+", default=["torchscript", "aoti"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--warm", nargs="+", type=float, default=[0.0, 10.0], help="seconds of calls before, each a row"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.out, arguments.measure, *arguments.warm)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = bundle("bert", arguments.layers, arguments.targets, Path(scratch))
        for target, warm in itertools.product(arguments.targets, arguments.warm):
            command = [sys.executable, __file__, str(path), "--measure", target, "--warm", str(warm)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
            sort = {"model": "bert-base", "layers": arguments.layers, "target": target, "warm_seconds": warm}
            row = {**sort, **json.loads(told)}
            print(row, flush=True)
            write(arguments.out, [row], machine("cuda", ["transformers"]), list(sort))


if __name__ == "__main__":
    main()

"""How long a thread that runs Python waits while another thread calls a bundle.

    python bench/pauses.py BUNDLE OUT.json --size batch=32 --size seq=128 [--targets aoti torchscript] [--calls 10]

A row is a target. `call_ms` is the median of the calls, made by one thread. Meanwhile, the main thread sleeps for a
millisecond at a time: `longest_ms` is the longest time between two of its turns, and `turns` is how many it has.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from pathlib import Path

import torch
from record import Row, machine, write

from fuseconv.contract.inputs import draw
from fuseconv.runtime.model import load

KEY = ("bundle", "target", "sizes")


def paused(bundle: Path, target: str, sizes: dict[str, int], calls: int) -> Row:
    """Returns the row of a target."""
    model = load(bundle, target)
    inputs = draw(model.contract, sizes, seed=0)
    model(*inputs)
    times: list[float] = []

    def call() -> None:
        for _ in range(calls):
            begun = time.perf_counter()
            model(*inputs)
            times.append(time.perf_counter() - begun)

    thread, turns = threading.Thread(target=call), [time.perf_counter()]
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        turns.append(time.perf_counter())
    longest = max(later - earlier for earlier, later in itertools.pairwise(turns))
    figures = {"call_ms": statistics.median(times) * 1e3, "longest_ms": longest * 1e3, "turns": len(turns) - 1}
    return {"bundle": bundle.stem, "target": target, "sizes": sizes, **figures}


def main() -> None:
    """Measures the targets that are asked for, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", action="append", metavar="DIM=N", default=[])
    parser.add_argument("--targets", nargs="+", default=["aoti", "torchscript"])
    parser.add_argument("--calls", type=int, default=10)
    arguments = parser.parse_args()
    sizes = {name: int(number) for name, _, number in (one.partition("=") for one in arguments.size)}
    torch.set_num_threads(1)
    rows = [paused(arguments.bundle, target, sizes, arguments.calls) for target in arguments.targets]
    for row in rows:
        print(row)
    write(arguments.out, rows, machine("cpu"), KEY)


if __name__ == "__main__":
    main()

"""The processes of bench/serving.py: contestants are built side by side, and measured one after the other.

Each row is measured in a process of its own, so that no cache in memory is shared. As many processes as there
are cores import what they need side by side, without using the GPU, and then wait for their turn.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path

import torch
from apart import apart, process
from contestants import Contestant, Server
from record import Row, reason
from replay import replayed
from served import Served, cut
from traffic import Traffic, outside, paired, traffic
from zoo_parts import Inputs

from fuseconv.runtime.model import Model

BUILT = "built.json"
CACHE = "cache"

PAIRS = 100
"""The calls of new sizes that are compared with calls of known sizes, at most."""

prepared: list[tuple[Callable[[], Server], Inputs]] = []
"""What `prepare` leaves for `measure` in the process of a row."""


def built(served: Served, one: Contestant, folder: Path, threads: int) -> None:
    """Builds a contestant, unless the folder has it, and writes there how long that took, or why it failed."""
    if (folder / BUILT).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    try:
        apart(build, served, one, folder, threads)
        result: Row = {"build_s": round(time.monotonic() - start, 1)}
    except Exception as error:  # noqa: BLE001 - that a tool fails is a result
        result = {"absent": reason(error)}
    (folder / BUILT).write_text(json.dumps(result))


def build(served: Served, one: Contestant, folder: Path, threads: int) -> None:
    """Builds a contestant in this process, with an empty cache."""
    quiet(folder / CACHE)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of the compilers that it starts
    torch.set_num_threads(threads)
    one.build(served, folder)


def prepare(served: Served, one: Contestant, folder: Path, scratch: Path) -> None:
    """Does in this process what needs no GPU, with a copy of the cache that the build filled."""
    if (folder / CACHE).exists():
        shutil.copytree(folder / CACHE, scratch)
    quiet(scratch)
    prepared.append((one.load(served, folder), served.inputs()))


def quiet(cache: Path) -> None:
    """Hides warnings, and names the cache of Inductor and Triton."""
    warnings.simplefilter("ignore")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)


def measure(served: Served, pattern: str, calls: int) -> Row:
    """Loads what was prepared in this process, calls it once, and returns the figures of the traffic."""
    start_load, largest = prepared.pop()
    first, requests = outside(served.ranges), traffic(pattern, served.ranges, calls)
    start = time.perf_counter()
    held = tuple(one.to(served.device) for one in largest)
    server = start_load()
    inputs = {size: cut(held, served.axes, size) for size in {first, *requests.sizes}}
    if served.device == "cuda":
        torch.cuda.synchronize()  # ONNX Runtime has a stream of its own
    replayed(server, Traffic((first,)), inputs, served.device)
    row: Row = {"calls": calls, "start_s": round(time.perf_counter() - start, 2)}
    cold = replayed(server, requests, inputs, served.device)
    row |= cold.figures() | memory(served.device)
    if isinstance(server, Model):
        row["graphs"] = len(server.cuda_graphs.shapes)
    replayed(server, requests, inputs, served.device)
    row |= cold.relative(replayed(server, requests, inputs, served.device))
    pairs = paired(served.ranges, requests.sizes, min(calls, PAIRS))
    inputs |= {size: cut(held, served.axes, size) for size in set(pairs.sizes)}
    return row | replayed(server, pairs, inputs, served.device).of_pairs()


def memory(device: str) -> Row:
    """Returns the megabytes that torch reserved at most, and those that are in use on the whole device."""
    if device == "cpu":
        return {"reserved_mb": None, "device_mb": None}
    free, total = torch.cuda.mem_get_info()
    return {"reserved_mb": torch.cuda.max_memory_reserved() >> 20, "device_mb": (total - free) >> 20}


def measured(
    served: Served, patterns: Sequence[str], calls: int, chosen: Mapping[str, Contestant], root: Path
) -> Iterator[tuple[str, str, Row]]:
    """Yields the figures of each pattern and contestant, which was built in `root`."""
    builds: dict[str, Row] = {name: json.loads((root / one.folder / BUILT).read_text()) for name, one in chosen.items()}
    jobs = list(itertools.product(patterns, chosen))
    for pattern, name in jobs:
        if "absent" in builds[name]:
            yield pattern, name, builds[name]
    jobs = [(pattern, name) for pattern, name in jobs if "absent" not in builds[name]]
    cores = os.cpu_count() or 1
    for first in range(0, len(jobs), cores):
        some = jobs[first : first + cores]
        with tempfile.TemporaryDirectory() as scratch:
            pools = {job: process() for job in some}
            ready = {
                job: pool.submit(prepare, served, chosen[job[1]], root / chosen[job[1]].folder, Path(scratch, *job))
                for job, pool in pools.items()
            }
            wait(ready.values())
            for (pattern, name), pool in pools.items():
                yield pattern, name, builds[name] | turn(pool, ready[pattern, name], served, pattern, calls)


def turn(pool: ProcessPoolExecutor, ready: Future[None], served: Served, pattern: str, calls: int) -> Row:
    """Returns the figures of the contestant that a process has prepared, or why there are none; ends the process."""
    with pool:
        try:
            ready.result()
            return pool.submit(measure, served, pattern, calls).result()
        except Exception as error:  # noqa: BLE001 - that a contestant fails is a result
            return {"absent": reason(error)}

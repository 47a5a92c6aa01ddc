"""The weights of a bundle: its size, load times, and memory of one and two processes, with and without the store.

    python bench/weights.py OUT.json [--model NAME ...] [--target NAME ...] [--bundle NAME ...] [--folder SCRATCH]

Converts each model twice: with every target self-contained, which is how bundles were before the store, and with the
store; `--bundle` names one of the two. Each conversion has the memory that its processes together held at most. Then
swaps the weights of the model of `make demo`, in a bundle and under calls of 8 threads. Every figure of a load is the
median of fresh processes, with the files in the page cache; memory is from /proc/self/smaps. A page of a file that
several processes map counts in equal shares.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from peak_memory import peak_of
from record import Row, machine, write
from safetensors.torch import load_file, save_file
from weights_models import DEMO, MODELS

from fuseconv.bundle.manifest import read_manifest
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of
from fuseconv.pipeline.swap import swap
from fuseconv.runtime.model import load
from fuseconv.targets import TARGETS
from fuseconv.weights.table import STORE

CONTAINED, STORED = "self-contained", "store"
"""The two bundles of a model."""

TIMES = 3
"""Loads of each target."""


def memory(bundle: Path) -> dict[str, float]:
    """Returns the megabytes of this process: anonymous memory, and the shares of the bundle's mapped files.

    The libraries of torch are left out, because what other processes of the machine do changes their shares.
    """
    sums = {"anon": 0, "mapped": 0}
    owned = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            path = words[5] if len(words) > 5 else ""
            owned = path.startswith((str(bundle), f"{tempfile.gettempdir()}/aotinductor"))
        elif words[0] == "Anonymous:":
            sums["anon"] += int(words[1])
            anonymous = int(words[1])
        elif words[0] == "Pss:":
            share = int(words[1])
        elif words[0] == "Swap:" and owned:  # the last line that is of interest
            sums["mapped"] += max(share - anonymous, 0)
    return {name: value / 1000 for name, value in sums.items()}


def child(bundle: str, *targets: str) -> None:
    """Loads targets in turn, calls each once, prints the figures of every load, and waits until stdin is closed."""
    folder, rows = Path(bundle), []
    contract = read_manifest(folder).contract
    inputs = tried_of(read_reference(folder / REFERENCE, contract))[0].case.inputs
    torch.zeros(64, 64) @ torch.zeros(64, 64)
    kept = []
    for target in targets:
        before, start = memory(folder), time.perf_counter()
        model = load(folder, target)
        seconds = time.perf_counter() - start
        model(*inputs)
        kept.append(model)
        after = memory(folder)
        rows.append({"target": target, "seconds": seconds, **{name: after[name] - before[name] for name in after}})
    print(json.dumps(rows), flush=True)
    sys.stdin.readline()
    print(json.dumps(memory(folder)), flush=True)
    sys.stdin.read()


class Process:
    """A process of `child`."""

    def __init__(self, bundle: Path, *targets: str) -> None:
        command = [sys.executable, __file__, "--child", str(bundle), *targets]
        self._process = subprocess.Popen(  # noqa: S603 - this file under the running interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> Any:
        """Returns the next line that it prints."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self) -> Any:
        """Returns its memory now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.read()

    def end(self) -> None:
        """Ends it."""
        self._process.communicate()


def loads(bundle: Path, target: str) -> Row:
    """Returns the medians of loads in fresh processes."""
    rows = []
    for _ in range(TIMES):
        process = Process(bundle, target)
        rows += process.read()
        process.end()
    return {
        "load_ms": round(statistics.median(row["seconds"] for row in rows) * 1e3, 1),
        **{f"{name}_mb": round(statistics.median(row[name] for row in rows), 1) for name in ("anon", "mapped")},
    }


def second_process(bundle: Path, target: str) -> float:
    """Returns the megabytes that a second process with a loaded target adds to what one process has, beside its own."""
    one = Process(bundle, target)
    one.read()
    alone = sum(one.ask().values())
    one.end()
    one, two = Process(bundle, target), Process(bundle, target)
    one.read(), two.read()
    both = [sum(process.ask().values()) for process in (one, two)]
    one.end(), two.end()
    bare = Process(bundle)
    bare.read()
    base = sum(bare.ask().values())
    bare.end()
    return round(sum(both) - alone - base, 1)


def converted(model: Path, bundle: Path, targets: list[str], contained: bool) -> Row:
    """Converts a model in a process of its own. Returns the time, and the memory of its processes at its peak."""
    words = [sys.executable, "-m", "fuseconv", "convert", str(model), "-o", str(bundle), "-q"]
    words += [word for target in targets for word in ("--target", target)]
    words += [word for target in targets if contained for word in ("--self-contained", target)]
    start = time.perf_counter()
    peak = peak_of(words)
    return {"convert_s": round(time.perf_counter() - start, 1), **peak}


def measure(model: str, name: str, bundle: Path) -> list[Row]:
    """Returns the rows of a bundle."""
    manifest = read_manifest(bundle)
    stored = (STORE, "original/") if name == CONTAINED else ()  # what a bundle before the store did not have
    size = sum(file.size for path, file in manifest.files.items() if not path.startswith(stored)) / 1e6
    known = {"model": model, "bundle": name}
    rows: list[Row] = [{**known, "target": "all", "bundle_mb": round(size, 1)}]
    for target in sorted(manifest.targets):
        rows.append({**known, "target": target, **loads(bundle, target)})
        rows[-1]["second_process_mb"] = second_process(bundle, target)
    if {"aoti", "torchscript"} <= set(manifest.targets):
        process = Process(bundle, "aoti", "torchscript")
        second = process.read()[1]
        process.end()
        rows.append({**known, "target": "torchscript after aoti"} | _rounded(second))
    return rows


def swapped(bundle: Path, folder: Path) -> list[Row]:
    """Returns the row of a swap: its time, the errors of each target, and calls of 8 threads meanwhile."""
    old = load_file(MODELS[DEMO](folder) / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in old.items()}
    new = {
        name: tensor + 0.02 * tensor.std() * noise[name] if tensor.is_floating_point() else tensor
        for name, tensor in old.items()
    }
    save_file(new, folder / "new.safetensors")
    start = time.perf_counter()
    done = swap(bundle, folder / "new.safetensors", output=folder / "swapped.fuseconv")
    row: Row = {"model": DEMO, "bundle": "swapped", "target": "all", "swap_s": round(time.perf_counter() - start, 1)}
    errors = {name: one["max_abs"] for name, one in done.report.to_json()["targets"].items()}
    for target in ("aoti", "onnx-plugin"):
        row[target] = {"max_abs": errors[target], **under_calls(bundle, done.bundle, target)}
    return [{**row, "kept": list(done.kept)}]


def under_calls(old: Path, new: Path, target: str) -> Row:
    """Returns how many calls of 8 threads gave the old, the new, and any other outputs, during 10 swaps."""
    inputs = tried_of(read_reference(old / REFERENCE, read_manifest(old).contract))[0].case.inputs
    expected = [load(bundle, target)(*inputs) for bundle in (old, new)]
    model, counts, ended = load(old, target), Counter[str](), threading.Event()

    def call() -> None:
        while not ended.is_set():
            outputs = model(*inputs)
            equal = [all(map(torch.equal, outputs, one)) for one in expected]
            counts["old" if equal[0] else "new" if equal[1] else "mixed"] += 1

    times = []
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call) for _ in range(8)]
        for bundle in (new, old) * 5:
            start = time.perf_counter()
            model.swap(bundle)
            times.append(time.perf_counter() - start)
        ended.set()
        for one in calls:
            one.result()
    return {**counts, "mixed": counts["mixed"], "swap_ms": round(statistics.median(times) * 1e3, 1)}


def _rounded(row: Row) -> Row:
    return {f"{name}_mb": round(row[name], 1) for name in ("anon", "mapped")}


def main() -> None:
    """Converts, measures and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--bundle", action="append", choices=(CONTAINED, STORED))
    parser.add_argument("--folder", type=Path, help="keep the bundles here, and use those that are there")
    options = parser.parse_args()
    targets = options.target or sorted(TARGETS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for model in options.model or [DEMO]:
            source = MODELS[model](folder)
            for name in options.bundle or (CONTAINED, STORED):
                bundle = folder / f"{model}-{name}.fuseconv"
                if not bundle.exists():
                    made = converted(source, bundle, targets, name == CONTAINED)
                    keep(options.out, [{"model": model, "bundle": name, "target": "all", **made}])
                keep(options.out, measure(model, name, bundle))
        if DEMO in (options.model or [DEMO]) and STORED in (options.bundle or [STORED]):
            shutil.rmtree(folder / "swapped.fuseconv", ignore_errors=True)
            keep(options.out, swapped(folder / f"{DEMO}-{STORED}.fuseconv", folder))


def keep(path: Path, rows: list[Row]) -> None:
    """Prints rows, and writes them to the file."""
    for row in rows:
        print(row, flush=True)
    write(path, rows, machine("cpu"), ("model", "bundle", "target"), lambda old, new: {**old, **new})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()

"""Converts small models on a Ray cluster of two nodes: with faults, and with one and two workers.

    pip install -c constraints.txt 'fuseconv[ray]'
    python bench/many.py bench/results/cpu_many.json

Both nodes are on this machine, with one core each, and a third one, without cores, holds the cluster together.

- `faults`: the first command converts, a worker is killed after a fifth of the models, and the command is interrupted
  after two fifths. The same command then continues, and a node is killed after three fifths; a new one joins.
  `made_twice` counts the bundles that were replaced after they had been finished. `attempts` is the sum of the tries of
  all bundles, without those that the interrupt ended.
- `workers`: the bundles per minute from the first row of a command to its last, with `--jobs` 1 and 2; and the seconds
  that one conversion took, which increase if the conversions compete for the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster
from record import Row, machine, write

from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import FuseconvError

STORE = 100 * 2**20
"""The size of each node's object store in bytes."""

CHILD = b"fuseconv.many.child"


def save_models(folder: Path, count: int) -> Path:
    """Saves models of one architecture with different weights, and returns the list of them."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(layers, (torch.randn(2, 8),), dynamic_shapes=({0: batch},))
    names = [f"m{at:03d}.pt2" for at in range(count)]
    for name in names:
        for weight in program.state_dict.values():
            torch.nn.init.normal_(weight)
        torch.export.save(program, folder / name)
    listing = folder / "list.yaml"
    listing.write_text(json.dumps({"options": {"target": "export"}, "models": names}))
    return listing


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Starts a cluster of two nodes with one core each, beside its head."""
    own = Cluster(initialize_head=True, head_node_args=node(0))
    try:
        for _ in range(2):
            own.add_node(**node(1))
        yield own
    finally:
        own.shutdown()


def node(cpus: int) -> dict[str, Any]:
    """Returns the settings of a node."""
    return {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": STORE, "include_dashboard": False}


class Command:
    """`fuseconv convert-many` in a process of its own.

    Attributes:
        made: the names of the models that it has converted, in order.
        times: when each of its rows was complete, in seconds of the monotonic clock.
    """

    def __init__(self, listing: Path, output: Path, *words: str) -> None:
        """Starts the command."""
        command = [sys.executable, "-m", "fuseconv", "convert-many", str(listing), "-o", str(output), "--json", *words]
        self.made: list[str] = []
        self.times: list[float] = []
        self._said: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            if line.startswith("["):
                self.times.append(time.monotonic())
                _, name, status, *_ = line.split()
                self.made += [name] * (status == "made")

    def until(self, ready: Callable[[], Any]) -> Any:
        """Waits until a function returns something, and returns it."""
        while not (found := ready()):
            if self._process.poll() is not None:
                raise SystemExit(f"the command has ended: {''.join(self._said)}")
            time.sleep(0.1)
        return found

    def interrupt(self) -> None:
        """Interrupts the command, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, list[Row]]:
        """Waits until the command has ended, and returns its exit status and its rows."""
        assert self._process.stdout is not None
        out, status = self._process.stdout.read(), self._process.wait()
        self._reader.join()
        if not out:
            raise SystemExit(f"the command has ended with {status}: {''.join(self._said)}")
        if not out.startswith("{"):
            raise SystemExit(repr(out[:3000]))
        return status, json.loads(out)["result"].get("rows", [])


def workers_of(listing: Path) -> list[int]:
    """Returns the process IDs of the workers that are converting models of the list."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if CHILD in words and any(word.startswith(os.fsencode(listing.parent)) for word in words):
            found.append(int(words[words.index(CHILD) + 1]))
    return found


def manifests(output: Path) -> dict[str, int]:
    """Returns the inode of each bundle's manifest, which a new bundle would not have."""
    return {path.parent.stem: path.stat().st_ino for path in output.glob("*.fuseconv/manifest.json")}


def faults(folder: Path, count: int) -> Row:
    """Converts models while a worker is killed, the command is interrupted, and a node is killed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a command would inherit that nohup ignores SIGINT
    listing, output, begun = save_models(folder, count), folder / "out", time.monotonic()
    with cluster() as own:
        words = ("--ray", own.address)
        first = Command(listing, output, *words)
        first.until(lambda: len(first.made) >= count // 5)
        os.kill(first.until(lambda: workers_of(listing))[0], signal.SIGKILL)
        first.until(lambda: len(first.made) >= 2 * count // 5)
        first.interrupt()
        interrupted, _ = first.end()
        before = manifests(output)
        left = len(workers_of(listing))
        second = Command(listing, output, *words)
        second.until(lambda: len(first.made) + len(second.made) >= 3 * count // 5)
        own.remove_node(min(own.worker_nodes, key=lambda one: one.unique_id), allow_graceful=False)
        own.add_node(**node(1))
        status, rows = second.end()
    after = manifests(output)
    stored = [json.loads(path.read_text()) for path in output.glob("m*.json")]
    return {
        "measure": "faults",
        "models": count,
        "bundles": sum(is_whole(output / f"{name}.fuseconv") for name in after),
        "exit_statuses": [interrupted, status],
        "made": [len(first.made), len(second.made)],
        "kept": sum(row["status"] == "kept" for row in rows),
        "made_twice": len(set(first.made) & set(second.made))
        + (len(first.made) - len(set(first.made)))
        + (len(second.made) - len(set(second.made)))
        + sum(after[name] != inode for name, inode in before.items()),
        "attempts": sum(row["tries"] for row in stored),
        "nodes": len({row["node"] for row in stored}),
        "left_after_interrupt": left,
        "hidden": sorted(path.name for path in (output / ".convert-many").iterdir()),
        "seconds": round(time.monotonic() - begun, 1),
    }


def is_whole(bundle: Path) -> bool:
    """Returns whether each file of a bundle is there and has the hash in its manifest."""
    try:
        open_bundle(bundle)
    except FuseconvError:
        return False
    return True


def scaled(folder: Path, count: int) -> Iterator[Row]:
    """Converts the same models with one worker and with two."""
    listing = save_models(folder, count)
    with cluster() as own:
        for jobs in (1, 2):
            run = Command(listing, folder / f"out{jobs}", "--ray", own.address, "--jobs", str(jobs))
            status, rows = run.end()
            assert status == 0
            minutes = (run.times[-1] - run.times[0]) / 60
            yield {
                "measure": f"workers {jobs}",
                "models": count,
                "bundles_per_minute": round((count - jobs) / minutes, 2),
                "seconds_per_conversion": statistics.median(row["seconds"] for row in rows),
                "load": os.getloadavg()[0],
            }


def main() -> int:
    """Measures and prints; 1 if a bundle is missing or was made twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--scaled", type=int, default=24)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    rows: list[Row] = []
    for measure in (lambda folder: scaled(folder, arguments.scaled), lambda folder: [faults(folder, arguments.models)]):
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(Path(folder)):
                print(row, flush=True)
                rows.append(row)
    write(arguments.out, rows, machine("cpu", ("ray",)), ("measure",))
    faulty = rows[-1]
    return int(faulty["bundles"] != faulty["models"] or faulty["made_twice"] > 0)


if __name__ == "__main__":
    sys.exit(main())

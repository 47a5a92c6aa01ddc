"""Replays traffic of changing sizes against bundles and their peers, and records latencies from the first call on.

    python bench/serving.py OUT.json [--only bert-base-masked] [--patterns one zipf random] [--peers eager compile aoti]

A row is a model, dtype, pattern (bench/traffic.py) and contestant (bench/contestants.py), measured in a process of its
own (bench/processes.py). Caches on disk are as the build left them. `start_s` is the time from the first use of the GPU
until the artifact is loaded and has answered one call, of a size that the traffic does not have. Nothing else is warmed
up, apart from what `load` does by itself, or for `--warm` seconds, for our targets. p50, p99, worst and calls/s are of
all calls that follow, each awaited.

`warm_p50_us` is of a third replay of the same traffic. `p50_of_warm` and `p99_of_warm` are of the first replay, from
its third call on, as multiples of it. `new_of_known` compares up to 100 further new sizes with known ones, whose calls
alternate. `reserved_mb` is the peak of torch's allocator, and `device_mb` what is in use on the whole device, the CUDA
context included, both at the end of the first replay. A contestant that does not run has a row with the reason in
`absent`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from apart import apart
from cases import DTYPES
from contestants import OURS, PEERS, contestants
from processes import built, measured
from record import Row, machine, write
from rich.console import Console
from rich.table import Table
from served import Served
from traffic import PATTERNS
from zoo import ENTRIES

from fuseconv.targets import TARGETS

KEY = ("model", "dtype", "layers", "pattern", "contestant")
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "transformers")
MODELS = sorted({entry.name for entry in ENTRIES})
FIGURES = (
    "start_s",
    "p50_us",
    "p99_us",
    "worst_us",
    "calls_per_s",
    "p50_of_warm",
    "p99_of_warm",
    "new_of_known",
    "reserved_mb",
)


def table(rows: Sequence[Row]) -> Table:
    """Returns the rows as a person reads them."""
    made = Table("model", "dtype", "pattern", "contestant", box=None)
    for name in FIGURES:
        made.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        names = [row[name] for name in ("model", "dtype", "pattern", "contestant")]
        figures = [] if "absent" in row else ["" if row.get(name) is None else f"{row[name]:,}" for name in FIGURES]
        made.add_row(*names, *(figures or [row["absent"]]))
    return made


def parsed() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MODELS,
        metavar="MODEL",
        default=["bert-base-masked", "mlp-3x128-relu", "convnext-t"],
    )
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=["torchscript", "aoti"])
    parser.add_argument("--warm", nargs="+", type=float, default=[None], metavar="SECONDS", help="of our targets")
    parser.add_argument("--calls", type=int, default=300, help="of each pattern, at least 3")
    parser.add_argument("--layers", type=int, help="of transformers and perceptrons, in place of all that they have")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="keep what is built there, and do not build again what it has")
    return parser.parse_args()


def run(arguments: argparse.Namespace, root: Path) -> list[Row]:
    """Builds, measures, and writes after every row: a run that is stopped keeps what it has."""
    models = [Served(name, arguments.dtype, arguments.layers, arguments.device) for name in arguments.only]
    chosen = contestants(arguments.targets, arguments.peers, arguments.warm)
    builds = {(one, each.folder): each for one in models for each in chosen.values()}
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(cores, len(builds)))) as pool:
        host = pool.submit(apart, machine, arguments.device, PACKAGES)  # this process stays away from the GPU
        for (served, name), one in builds.items():
            pool.submit(built, served, one, root / served.label / name, max(1, cores // len(builds)))
    rows = []
    for served in models:
        key = {"model": served.name, "dtype": served.dtype, "layers": served.layers}
        for pattern, name, figures in measured(
            served, arguments.patterns, arguments.calls, chosen, root / served.label
        ):
            rows.append({**key, "pattern": pattern, "contestant": name, **figures})
            write(arguments.out, rows[-1:], host.result(), KEY)
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Measures and prints; 1 if a bundle does not serve."""
    arguments = parsed()
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(arguments, arguments.folder or Path(scratch))
    Console(width=200).print(table(rows))
    return int(any("absent" in row and row["contestant"].startswith(OURS) for row in rows))


if __name__ == "__main__":
    sys.exit(main())

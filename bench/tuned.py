"""Converts models of the zoo with and without tuning: how long each takes, and which targets and matches it changes.

    python bench/tuned.py bench/results/h200_tuned.json --only bert-base --device cuda

A row has the seconds of `--tune none` and of the other, the times of each target as the bundle has them, and the
matches that are left alone. The exit status is 1 if quick tuning more than doubles a conversion, or if a target is
slower than its unfused artifact. Each conversion runs in a process of its own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from apart import apart
from cases import DTYPES
from record import Row, machine, write
from zoo import ENTRIES, Entry

from fuseconv.commands.progress import shown
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.tune import Tune
from fuseconv.sources import Options
from fuseconv.targets import TARGETS


def converted(at: str, dtype: str, arguments: argparse.Namespace, tune: Tune) -> Row:
    """Converts a model, and returns the seconds that it took and what was chosen."""
    (entry,) = (entry for entry in ENTRIES if entry.at == at)
    module, inputs = entry.made(DTYPES[dtype], arguments.layers)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        source = Path(folder, "model.pt2")
        torch.export.save(torch.export.export(module, inputs, strict=False), source)
        start, options = time.monotonic(), Options(device=arguments.device)
        done = convert(
            source, target=arguments.targets, output=Path(folder, "out"), options=options, tune=tune, progress=shown
        )
        seconds = time.monotonic() - start
    left = Counter(
        f"{step.rule} in {target}: {choice}"
        for step in done.plan.applied
        for target, choice in step.left_alone().items()
        if any("(" in line for line in step.replace)
    )
    tuned = done.tuned.model_dump() if done.tuned is not None else {"speeds": {}}
    return {"seconds": round(seconds, 1), "applied": done.plan.counts(arguments.targets), "left": dict(left), **tuned}


def measured(entry: Entry, dtype: str, arguments: argparse.Namespace) -> Row:
    """Converts a model in both ways."""
    plain, tuned = (apart(converted, entry.at, dtype, arguments, tune) for tune in ("none", arguments.tune))
    return {"model": entry.at, "dtype": dtype, "tune": arguments.tune, "untuned_seconds": plain["seconds"], **tuned}


def faults(row: Row) -> Iterator[str]:
    """Yields what a row must not show."""
    if row["tune"] == "quick" and row["seconds"] > 2 * row["untuned_seconds"]:
        yield f"{row['model']} took {row['seconds']} s, and {row['untuned_seconds']} s without tuning"
    for target, speed in row["speeds"].items():
        if speed["us"] > speed["unfused_us"] + speed["noise_us"]:
            yield f"{row['model']} in {target} takes {speed['us']} us, and {speed['unfused_us']} us unfused"


def main() -> int:
    """Measures the models asked for, and keeps what is done after each. Returns 1 if a row has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--dtype", choices=DTYPES, help="by default each model's own")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["aoti", "export", "torchscript"])
    parser.add_argument("--layers", type=int, help="in place of all that the model has")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tune", choices=("quick", "full"), default="quick")
    arguments = parser.parse_args()
    wrong = []
    for entry in ENTRIES:
        if entry.name in arguments.only or entry.at in arguments.only:
            row = measured(entry, arguments.dtype or entry.dtype, arguments)
            write(arguments.out, [row], machine(arguments.device), ("model", "dtype", "tune"))
            wrong += faults(row)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

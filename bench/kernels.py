"""Which kernels a call runs on the GPU, and for how long: what is beside the products shows where time is lost."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch
from clock import Call

CALLS = 5
WARMUP = 3
LONGEST_NAME = 160


def kernels(call: Call) -> list[tuple[str, float, float]]:
    """Returns the kernels of a call by name, the slowest first: how many a call runs, and their microseconds in all."""
    for _ in range(WARMUP):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    for event in profile.events() or ():
        if event.device_type == torch.profiler.DeviceType.CUDA:
            found[event.name].append(event.device_time)
    rows = [(name, len(times) / CALLS, sum(times) / CALLS) for name, times in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def write(path: Path, title: str, call: Call) -> None:
    """Appends a call's kernels to a text file."""
    rows = kernels(call)
    lines = [f"{title}: {sum(row[2] for row in rows):.0f} us of {len(rows)} kernels", *map(_line, rows), ""]
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n")


def _line(row: tuple[str, float, float]) -> str:
    name, count, microseconds = row
    return f"{microseconds:10.1f} {count:7.1f} {name[:LONGEST_NAME]}"

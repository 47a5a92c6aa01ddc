"""The memory that a command and the processes that it starts hold together at most."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

INTERVAL = 0.2
"""Seconds between two samples; a peak that is shorter can be missed."""

PARTS = {"anon": ("Pss_Anon:", "Pss_Shmem:"), "all": ("Pss:",)}
"""Of /proc/PID/smaps_rollup: what the kernel cannot take back, and that with the mapped pages of files."""


def peak_of(command: Sequence[str]) -> dict[str, float]:
    """Runs a command, and returns the largest sums over its processes, in MB: `peak_anon_mb` and `peak_all_mb`.

    Raises:
        CalledProcessError: the command failed.
    """
    largest = dict.fromkeys(PARTS, 0)
    with subprocess.Popen(command, start_new_session=True) as process:  # noqa: S603 - what a benchmark measures
        while process.poll() is None:
            sums = _sums(process.pid)
            largest = {name: max(value, sums[name]) for name, value in largest.items()}
            time.sleep(INTERVAL)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {f"peak_{name}_mb": round(value / 1000, 1) for name, value in largest.items()}


def _sums(session: int) -> dict[str, int]:
    """Returns the kilobytes of the processes of a session."""
    sums = dict.fromkeys(PARTS, 0)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:  # the process has ended
            continue
        for line in lines:
            key, *values = line.split()
            for name, keys in PARTS.items():
                sums[name] += int(values[0]) if key in keys else 0
    return sums

"""Detects whether other processes use this machine, because this makes measured times longer and less certain."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import torch

CPUS = Path("/proc/stat")

LEAST = 0.25
"""The number of processors that other processes must use, on average, before a note is returned."""

LEAST_GPU = 5
"""The GPU utilization in percent from which a note is returned."""


def gpu_note() -> str | None:
    """Returns a note if other processes use the GPU, else None. Call this before this process uses the GPU."""
    used = _gpu_used()
    return f"the GPU was used to {used} % before the measurement began" if used >= LEAST_GPU else None


class Processors:
    """Measures how much other processes use the processors, from the time at which this object is created."""

    def __init__(self) -> None:
        self._start, self._every, self._own = time.monotonic(), _seconds_of_all(), _own_seconds()

    def note(self) -> str | None:
        """Returns a note if other processes used the processors, else None. Call this after all child processes end."""
        spent, own = time.monotonic() - self._start, _own_seconds() - self._own
        used = (_seconds_of_all() - self._every - own) / spent
        return f"other processes used {used:.1f} of {os.cpu_count()} processors" if used >= LEAST else None


def _seconds_of_all() -> float:
    """Returns the total processor time of all processes of the machine, in seconds."""
    fields = [int(text) for text in CPUS.read_text().partition("\n")[0].split()[1:]]
    user, nice, system, _idle, _waiting, interrupts, short_interrupts = fields[:7]
    return (user + nice + system + interrupts + short_interrupts) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Returns the total processor time of this process and of its child processes that have ended, in seconds."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _gpu_used() -> int:
    """Returns the utilization of this process's GPU in percent, or 0 if nvidia-smi does not report it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    name = f"GPU-{torch.cuda.get_device_properties().uuid}"
    query = [program, "-i", name, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - see above
    return int(told) if told.isdigit() else 0

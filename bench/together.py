"""Runs commands side by side, each with limits on its time: they prepare in company and measure one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turns import COMPANY, WAITING, state

PAUSE = 0.1
PREPARING = 0.75
"""The part of a run with a limit after which nobody prepares any more while others wait to measure."""


@dataclass(frozen=True)
class Limits:
    """What a run may take.

    Attributes:
        processes: how many there are at a time.
        seconds: of a process, for what it does in company, and again for what it does alone.
        until: when all are ended, in seconds since the epoch.
    """

    processes: int
    seconds: float
    until: float


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    state: str
    since: float


def run(commands: Mapping[str, Sequence[str]], folder: Path, limits: Limits, threads: int | None) -> dict[str, str]:
    """Runs the commands in their order.

    Args:
        commands: by name; what they print goes to stderr.
        folder: of their `Turns`.
        limits: of them.
        threads: of each; None for the default.

    Returns:
        The names of those that failed, and why.
    """
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    waiting, failed = list(commands), {}
    last = time.time() + PREPARING * (limits.until - time.time())
    running: dict[str, _Child] = {}
    try:
        while waiting or running:
            if time.time() > limits.until:
                failed |= dict.fromkeys(waiting, "not begun: out of time") | dict.fromkeys(running, "out of time")
                break
            while waiting and len(running) < limits.processes and all(map(_prepares, running.values())):
                name = waiting.pop(0)
                process = subprocess.Popen(  # noqa: S603 - this folder's scripts
                    commands[name], stdout=subprocess.DEVNULL, env=environment, start_new_session=True
                )
                running[name] = _Child(process, "", time.time())
            time.sleep(PAUSE)
            for name, child in list(running.items()):
                reason = _ended(child, folder, limits.seconds)
                if reason is None and time.time() > last and _holds_up(child, running.values()):
                    _kill(child)
                    reason = "not prepared while others waited to measure"
                if reason is not None:
                    del running[name]
                    if reason:
                        failed[name] = reason
    finally:
        for child in running.values():
            _kill(child)
    return failed


def _prepares(child: _Child) -> bool:
    """Whether it is not done with that: once one is, no other is begun before all have measured."""
    return child.state in ("", COMPANY)


def _holds_up(child: _Child, all_of_them: Iterable[_Child]) -> bool:
    """Whether others cannot measure before it is done with preparing."""
    return child.state == COMPANY and any(other.state == WAITING for other in all_of_them)


def _ended(child: _Child, folder: Path, seconds: float) -> str | None:
    """Returns why a process is not running any more, empty if it is done; None if it runs."""
    status = child.process.poll()
    if status is not None:
        _kill(child)  # what it has started
        return f"exit status {status}" if status else ""
    now = state(folder, child.process.pid)
    if now != child.state:
        child.state, child.since = now, time.time()
    if now != WAITING and time.time() - child.since > seconds:
        _kill(child)
        return f"more than {seconds:.0f} s {now or 'to start'}"
    return None


def _kill(child: _Child) -> None:
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.process.wait()

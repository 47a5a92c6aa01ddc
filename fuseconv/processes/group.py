"""Runs a command in a process group of its own, so that the processes that it starts can be killed with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_in_group(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a command, and kills it and every process that it started if it does not end by itself.

    Args:
        command: the words of the command.
        seconds: the time limit in seconds.
        environment: the environment variables of the command.
        folder: the folder in which the command runs.

    Returns:
        The exit status of the command, and what it wrote to stdout and stderr.

    Raises:
        TimeoutExpired: the command took longer than `seconds`.
    """
    with subprocess.Popen(  # noqa: S603 - the command of a caller in this package
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            out, said = child.communicate(timeout=seconds)
        except BaseException:  # a time-out, or an interrupt
            kill_group(child)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, said)


def kill_group(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kills a process that leads a group, and every process in the group. Does nothing if the process has ended."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)

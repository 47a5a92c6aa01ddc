"""Runs one conversion in a child process with a time limit, and records its result. Does not import torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuseconv.errors import FuseconvError
from fuseconv.many.listing import Entry, Options
from fuseconv.many.row import Row
from fuseconv.processes.group import kill_group

COMMAND = (sys.executable, "-m", "fuseconv.many.child")

STEP = 0.5
"""The time in seconds after which a wait for a child notices an interrupt."""

TRANSIENT = (5, 7)
"""The exit statuses after which a conversion is retried: a tool or the device failed, for example because memory ran
out, or fuseconv has a bug. A conversion that a signal ended is also retried. Other failures would recur."""


@dataclass(frozen=True)
class How:
    """How each model of a list is converted.

    Attributes:
        tries: the maximum number of tries of a conversion that fails for a transient reason.
        limit: the time limit of one try in seconds.
        again: whether to convert a model again even if its bundle is up to date.
        defaults: the options from the project's settings. A change of these options makes bundles out of date.
        project: the folder of the project's settings, in which the conversions run, so that they find the settings.
            None if there are no settings.
    """

    tries: int = 2
    limit: float = 3600.0
    again: bool = False
    defaults: Options = field(default_factory=dict)
    project: Path | None = None


class Children:
    """The running child processes, so that all can be killed when the run is interrupted.

    Attributes:
        stopped: whether the run was interrupted and no further child may be started.
    """

    def __init__(self) -> None:
        """Starts without child processes."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def run(self, command: list[str], limit: float, folder: Path | None) -> tuple[int, bytes, bytes]:
        """Runs a command in a new process group, which is killed if the command does not end by itself.

        Args:
            command: the words of the command.
            limit: the time limit in seconds.
            folder: the folder in which the command runs. None for the folder of this process.

        Returns:
            The exit status, what the command wrote to stdout, and what it wrote to stderr.

        Raises:
            TimeoutExpired: the command took longer than the limit, and was killed.
        """
        with self._lock:
            child = subprocess.Popen(  # noqa: S603 - fuseconv itself
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=folder,
            )
            self._running.add(child)
            if self.stopped:
                kill_group(child)
        try:
            out, said = _communicate(child, limit)
        except BaseException:  # a time-out, or an interrupt
            kill_group(child)
            child.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(child)
        return child.returncode, out, said

    def stop(self) -> None:
        """Sets `stopped`, so that no further try begins, and kills every running child."""
        self.stopped = True
        with self._lock:
            for child in self._running:
                kill_group(child)


def _communicate(child: subprocess.Popen[bytes], limit: float) -> tuple[bytes, bytes]:
    """Waits for a child to end, and returns what it wrote. Raises TimeoutExpired after `limit` seconds.

    Waits in short steps: Ray interrupts a task only between two calls of the system.
    """
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        try:
            return child.communicate(timeout=max(0, min(left, STEP)))
        except subprocess.TimeoutExpired:
            if left <= STEP:
                raise


def convert(entry: Entry, bundle: Path, how: How, children: Children) -> Row:
    """Converts a model in a child process, retries after a transient failure, and returns the row of the result.

    Args:
        entry: the model to convert, with its options.
        bundle: the folder of the bundle to write.
        how: the number of tries, their time limit, and the folder in which they run.
        children: starts the child, and kills it if the run is interrupted.
    """
    words = ["convert", str(entry.model), "-o", str(bundle), *entry.words(), "--json"]
    begun, tried, status = time.monotonic(), 0, 0
    record: Mapping[str, Any] = {}
    while tried < how.tries and not children.stopped:
        tried += 1
        status, record = _run([*COMMAND, str(os.getpid()), *words], how, children)
        if status == 0 or (status > 0 and status not in TRANSIENT):
            break
    failed = Row(
        entry.name,
        str(entry.model),
        "failed",
        seconds=round(time.monotonic() - begun, 1),
        tries=tried,
        exit_status=status,
        error=_said(record, status) if tried else "interrupted",
    )
    return failed if status or not tried else _made(failed, bundle, record["result"])


def _made(row: Row, bundle: Path, result: Mapping[str, Any]) -> Row:
    """Returns the row of a successful conversion: `row` with the fields from the result that the command printed."""
    targets = {name: one for name, one in result["targets"].items() if one["path"] is not None}
    errors = [one["parity"]["max_abs"] for one in targets.values() if one["parity"]["max_abs"] is not None]
    return replace(
        row,
        status="made",
        error="",
        bundle=str(bundle),
        targets=tuple(targets),
        fusions=sum(one["status"] == "applied" for one in result["fusions"]),
        max_abs=max(errors, default=None),
    )


def _run(command: list[str], how: How, children: Children) -> tuple[int, dict[str, Any]]:
    """Runs a command, and returns its exit status and the JSON object that it printed.

    After a time-out, the status is -9. If the command printed no JSON, the record holds the last lines of its stderr.
    """
    try:
        status, out, said = children.run(command, how.limit, how.project)
    except subprocess.TimeoutExpired:
        what = f"the conversion took more than {how.limit:g} s"
        return -signal.SIGKILL, {"error": {"message": what, "where": "--timeout", "hint": "raise --timeout"}}
    try:
        record: dict[str, Any] = json.loads(out)
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines()[-3:]
        return status or FuseconvError.exit_status, {"error": {"message": " ".join(lines)}}
    return status, record


def _said(record: Mapping[str, Any], status: int) -> str:
    """Formats the error of a failed conversion as up to three lines: what failed, where, and how to fix it."""
    error = record.get("error") or {}
    if status < 0 and not error.get("message"):
        return f"the conversion was ended by the signal {signal.Signals(-status).name}\n  fix: use fewer --jobs"
    at, fix = error.get("where"), error.get("hint")
    lines = [
        error.get("message") or f"exit status {status}",
        f"  at: {at}" if at else "",
        f"  fix: {fix}" if fix else "",
    ]
    return "\n".join(filter(None, lines))

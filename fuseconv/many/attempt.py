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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fuseconv.bundle.manifest import SUFFIX
from fuseconv.errors import FuseconvError
from fuseconv.many.listing import Entry

COMMAND = (sys.executable, "-m", "fuseconv")

TRANSIENT = (5, 7)
"""The exit statuses after which a conversion is retried: a tool or the device failed, for example because memory ran
out, or fuseconv has a bug. A conversion that a signal ended is also retried. Other failures would recur."""


@dataclass(frozen=True)
class Row:
    """The result of converting one model, as plain JSON values.

    Attributes:
        name: the name of the model.
        model: the path of the model.
        status: `made`, `kept` (the bundle was already up to date) or `failed`.
        bundle: the folder of the bundle. Empty if the conversion failed.
        targets: the names of the targets in the bundle. Empty if the conversion failed.
        fusions: the number of matches that were replaced.
        max_abs: the largest absolute error over all targets, compared with the original model. None if not known.
        seconds: the total duration of all tries in seconds.
        tries: the number of tries.
        exit_status: the exit status of the last try. -9 if the process was killed.
        error: what failed, where, and how to fix it. Empty if nothing failed.
        fingerprint: the hash of the model, rules, options and versions from which the bundle was built.
        manifest: the SHA-256 of the bundle's manifest. Empty if the conversion failed.
    """

    name: str
    model: str
    status: Literal["made", "kept", "failed"]
    bundle: str = ""
    targets: tuple[str, ...] = ()
    fusions: int = 0
    max_abs: float | None = None
    seconds: float = 0.0
    tries: int = 0
    exit_status: int = 0
    error: str = ""
    fingerprint: str = ""
    manifest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)


class Stopped:
    """Tracks the running child processes, so that all can be killed when the run is interrupted.

    Attributes:
        is_set: whether the run was interrupted and no further child may be started.
    """

    def __init__(self) -> None:
        """Starts without child processes."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.is_set = False

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a child in a new process group, so that its own children can be killed with it."""
        with self._lock:
            child = subprocess.Popen(  # noqa: S603 - fuseconv itself
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(child)
        return child

    def ended(self, child: subprocess.Popen[bytes]) -> None:
        """Stops tracking a child that has ended."""
        with self._lock:
            self._running.discard(child)

    def stop(self) -> None:
        """Sets `is_set`, so that no further try begins, and kills every running child."""
        self.is_set = True
        with self._lock:
            for child in self._running:
                kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kills a child and every process in its group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def convert(entry: Entry, folder: Path, *, tries: int, limit: float, stopped: Stopped, fingerprint: str = "") -> Row:
    """Converts a model in a child process, retries after a transient failure, and returns the row of the result.

    Args:
        entry: the model to convert, with its options.
        folder: the folder in which the bundle is written, as `NAME.fuseconv`.
        tries: the maximum number of tries.
        limit: the time limit of one try in seconds.
        stopped: tracks the child, to kill it if the run is interrupted.
        fingerprint: the hash from `fingerprint.fingerprint`, which is stored in the row.
    """
    bundle = folder / f"{entry.name}{SUFFIX}"
    words = ["convert", str(entry.model), "-o", str(bundle), *entry.words(), "--json"]
    begun, tried, status = time.monotonic(), 0, 0
    record: Mapping[str, Any] = {}
    while tried < tries and not stopped.is_set:
        tried += 1
        status, record = _run([*COMMAND, *words], limit, stopped)
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
        fingerprint=fingerprint,
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


def _run(command: list[str], limit: float, stopped: Stopped) -> tuple[int, dict[str, Any]]:
    """Runs a command and kills it after `limit` seconds. Returns its exit status and the JSON object that it printed.

    After a time-out, the status is -9. If the command printed no JSON, the record holds the last lines of its stderr.
    """
    child = stopped.start(command)
    try:
        out, said = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill(child)
        child.communicate()
        what = f"the conversion took more than {limit:g} s"
        return -signal.SIGKILL, {"error": {"message": what, "where": "--timeout", "hint": "raise --timeout"}}
    finally:
        stopped.ended(child)
    try:
        record: dict[str, Any] = json.loads(out)
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines()[-3:]
        return child.returncode or FuseconvError.exit_status, {"error": {"message": " ".join(lines)}}
    return child.returncode, record


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

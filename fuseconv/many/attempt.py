"""One conversion in a child process: its words, time limit, and the row of its result. Nothing here imports torch."""

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
"""The exit statuses after which a conversion is tried again: a tool or the device failed (memory?), or a bug. So is
one that a signal has ended. The others would fail again."""


@dataclass(frozen=True)
class Row:
    """The result of one model, as plain JSON values.

    Attributes:
        name: the name of the model.
        model: its path.
        status: `made`, `kept` (it was finished before) or `failed`.
        bundle: the folder of the bundle.
        targets: the targets in the bundle.
        fusions: the number of matches that were replaced.
        max_abs: the largest error against the original, over all targets.
        seconds: how long the conversion took, with all tries.
        tries: how often it was tried.
        exit_status: that of the last try. -9 if it was killed.
        error: what failed, where, and the fix. Empty if nothing did.
        fingerprint: the hash of what the bundle was made from.
        manifest: the sha256 of the manifest of the bundle.
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
    """Ends the children of a run that is interrupted."""

    def __init__(self) -> None:
        """Remembers no child yet."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.is_set = False

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a child in a group of its own, so that what it starts is ended with it."""
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
        """Forgets a child."""
        with self._lock:
            self._running.discard(child)

    def stop(self) -> None:
        """Ends every child, and starts no other."""
        self.is_set = True
        with self._lock:
            for child in self._running:
                kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Ends a child and what it has started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def convert(entry: Entry, folder: Path, *, tries: int, limit: float, stopped: Stopped, fingerprint: str = "") -> Row:
    """Converts a model in a child process, again if that may help.

    Args:
        entry: the model.
        folder: where the bundle is written, as `NAME.fuseconv`.
        tries: how often a conversion is tried that fails for a transient reason.
        limit: the time limit of one try in seconds.
        stopped: ends the child if the run is interrupted.
        fingerprint: what the bundle is made from, for the row.
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
    """Returns the row of a conversion that succeeded, from the result that the command printed."""
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
    """Returns the exit status and the JSON record of a command, which is killed after the time limit."""
    child = stopped.start(command)
    try:
        out, said = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill(child)
        child.communicate()
        what = f"the conversion took more than {limit:g} s"
        return -signal.SIGKILL, {"error": {"message": what, "where": "--timeout", "hint": "raise it"}}
    finally:
        stopped.ended(child)
    try:
        record: dict[str, Any] = json.loads(out)
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines()[-3:]
        return child.returncode or FuseconvError.exit_status, {"error": {"message": " ".join(lines)}}
    return child.returncode, record


def _said(record: Mapping[str, Any], status: int) -> str:
    """Returns the text of an error of three lines, as the command prints it."""
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

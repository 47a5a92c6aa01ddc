"""Verification in a separate process that loads only the bundle: no code of rules or models, no state of the caller.

The process is started early, so that it imports torch while a model is read, and runs until its parent exits.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.report import OutputRow

TIME_LIMIT = 3600.0
"""The time limit of one target, in seconds."""

_LOG_LINES = 5


@dataclass(frozen=True)
class Verified:
    """The result of one target: its rows, or the error.

    Attributes:
        rows: one per case and output.
        error: the target did not load, crashed, or took too long.
    """

    rows: tuple[OutputRow, ...] = ()
    error: FuseconvError | None = None


class VerifyProcess:
    """The verification process. It is restarted after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def start(self) -> None:
        """Starts the process if it is not running. Returns immediately."""
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        self.stop()
        path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.parity.child"],
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is handled by the caller
        )
        self._owner, self._pending = os.getpid(), b""

    def stop(self) -> None:
        """Terminates the process and its children. A fork of the process that started it only drops the reference."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        if self._owner != os.getpid():
            process.returncode = 0  # it is not a child of this process
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def verify(
        self,
        bundle: Path,
        targets: Sequence[str],
        *,
        reference: Path | None = None,
        cases: Sequence[str] | None = None,
        hashed: bool = False,
    ) -> dict[str, Verified]:
        """Runs targets of a bundle and compares each output.

        Args:
            bundle: the folder.
            targets: the targets to run.
            reference: the file with the reference outputs. Default: that of the bundle.
            cases: the names of the cases to run. Default: all.
            hashed: whether the caller has just sealed or opened the bundle, so that its files are not hashed again.

        Returns:
            The result of each target.

        Raises:
            RefusedError: the bundle is damaged.
            UpstreamError: the process cannot be started.
        """
        with self._lock, tempfile.TemporaryDirectory() as scratch:
            log, left = Path(scratch, "log"), list(targets)
            found: dict[str, Verified] = {}
            try:
                while left:
                    request = {
                        "bundle": str(bundle.absolute()),
                        "targets": left,
                        "reference": None if reference is None else str(reference),
                        "cases": None if cases is None else list(cases),
                        "hashed": hashed,
                        "log": str(log),
                        "threads": torch.get_num_threads(),
                        "environment": dict(os.environ),
                    }
                    found |= self._ask(request, log)
                    left = [target for target in left if target not in found]
            except BaseException:
                self.stop()
                raise
            return found

    def _ask(self, request: dict[str, Any], log: Path) -> dict[str, Verified]:
        """Sends one request. If a target crashes, returns the results up to that target."""
        self._send(request)
        found: dict[str, Verified] = {}
        at = ""
        for answer in self._answers():
            match answer:
                case {"target": target, "rows": rows}:
                    found[target] = Verified(tuple(_row(row) for row in rows))
                case {"target": target, "error": error}:
                    found[target] = Verified(error=_error(error))
                case {"error": error}:
                    raise _error(error)
                case {"target": target}:
                    at = target
                case {"ended": status}:
                    if at and at not in found:
                        found[at] = Verified(error=_crash(at, status, log))
                    if not found:
                        raise UpstreamError(
                            f"the verification process exited before it started: {_said(log)}", where="verification"
                        )
                    return found
        # No answer and no exit: it took too long, or the process was killed.
        self.stop()
        what = (
            f"the target {at} did not respond within {TIME_LIMIT:.0f} s"
            if at
            else "the verification process was killed"
        )
        return {**found, at or request["targets"][0]: Verified(error=UpstreamError(what, where=request["bundle"]))}

    def _send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode() + b"\n"
        for attempt in range(2):
            self.start()
            assert self._process is not None
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            except BrokenPipeError:  # it was idle for too long and has exited
                self.stop()
                if attempt:
                    raise
            else:
                return

    def _answers(self) -> Iterator[dict[str, Any]]:
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + TIME_LIMIT
        while (wait := end - time.monotonic()) > 0:
            if not select.select([self._process.stdout], [], [], wait)[0]:
                return
            if not (read := os.read(self._process.stdout.fileno(), 1 << 16)):
                return
            *lines, self._pending = (self._pending + read).split(b"\n")
            for line in lines:
                end = time.monotonic() + TIME_LIMIT
                yield json.loads(line)


PROCESS = VerifyProcess()
"""The verification process of this process."""

atexit.register(PROCESS.stop)


def _row(fields: dict[str, Any]) -> OutputRow:
    return OutputRow(**{**fields, "row": Row(**fields["row"])})


def _error(fields: dict[str, str]) -> FuseconvError:
    kinds = {kind.code: kind for kind in FuseconvError.__subclasses__()}
    return kinds.get(fields["code"], UpstreamError)(fields["what"], where=fields["where"], fix=fields["fix"])


def _crash(target: str, status: int, log: Path) -> UpstreamError:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited the process with status {status}"
    return UpstreamError(
        f"the target {target} {how} when it was run: {_said(log)}",
        where=f"the target {target}",
        fix=f"leave the target {target} out",
    )


def _said(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "; ".join(line.strip() for line in lines[-_LOG_LINES:]) or "no output"

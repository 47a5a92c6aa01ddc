"""Reads a TorchScript archive in a separate process, because torch crashes on some damaged archives.

The process is `loading`. It is started for the first archive and kept for the next, which need not import torch again.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fuseconv.errors import UpstreamError

FIX = "copy the file again, or save it again with torch.jit.save"

SECONDS, BYTES_PER_SECOND = 90, 20 << 20
"""The time limit for reading, in seconds: the import of torch, and the file from a slow disk."""


def require_loads(path: Path) -> None:
    """Checks that torch reads an archive without crashing. Exceptions are ignored here.

    Raises:
        UpstreamError: reading crashes, takes too long, or would go past the end of the data.
    """
    seconds = SECONDS + path.stat().st_size // BYTES_PER_SECOND
    answer = _READER.read(path.absolute(), seconds)
    if answer is None:
        happened = f"takes longer than {seconds} s"
    elif answer["said"]:
        raise UpstreamError(f"the archive is damaged: {answer['said']}", where=str(path), fix=FIX)
    elif answer["status"] >= 0:
        return
    else:
        happened = f"crashes ({signal.Signals(-answer['status']).name})"
    raise UpstreamError(
        f"torch {happened} when it reads the archive, which is probably damaged",
        where=str(path),
        fix=FIX,
    )


class _Reader:
    """The process that reads archives. It is started when there is none, and after it took too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = -1

    def read(self, path: Path, seconds: int) -> dict[str, Any] | None:
        """Returns the exit status of reading, and what is said of the archive. None if it took too long.

        Raises:
            UpstreamError: the process does not start.
        """
        with self._lock:
            try:
                for _ in range(2):  # one that was idle for too long has exited
                    if (answer := self._ask(json.dumps([str(path), seconds]).encode() + b"\n", seconds)) is None:
                        self.stop()
                        return None
                    if answer:
                        found: dict[str, Any] = json.loads(answer)
                        return found
                    self.stop()
            except BaseException:
                self.stop()
                raise
        raise UpstreamError("the process that reads archives exited before it answered", where=str(path))

    def _ask(self, request: bytes, seconds: int) -> bytes | None:
        """Returns the answer, which is empty if the process has ended. None if there is no answer in time."""
        process, end = self._started(), time.monotonic() + seconds
        assert process.stdout is not None
        try:
            os.write(self._requests, request)
        except BrokenPipeError:
            return b""
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                return None
            if not (more := os.read(process.stdout.fileno(), 1 << 16)):
                return b""
            answer += more
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            self.stop()
            search = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
            served, self._requests = os.pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.untrusted.loading"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
                stdin=served,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # with its fork it is a group, which is ended at once
            )
            self._owner = os.getpid()
            os.close(served)
        return self._process

    def stop(self) -> None:
        """Ends the process and its fork. A fork of the process that started it only drops the reference."""
        process, self._process = self._process, None
        if process is None:
            return
        os.close(self._requests)
        assert process.stdout is not None
        process.stdout.close()
        if self._owner != os.getpid():
            process.returncode = 0  # it is not a child of this process
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_READER = _Reader()

atexit.register(_READER.stop)

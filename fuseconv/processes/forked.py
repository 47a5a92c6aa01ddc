"""Starts processes that are forks of the server, which is started for the first and kept for the next.

A process that imports torch takes one second to start, and one that converts two; a fork takes a hundredth.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuseconv.errors import UpstreamError

START = 300.0
"""The time limit in seconds for starting, including the import of torch."""

_AT_IMPORT = ("CC", "CXX", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTORCH", "TORCH", "TRITON")
"""How the environment variables begin that are read when torch is imported. A server is used only while they stay."""

_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables of these that are read when they are needed. torch itself sets them where it first needs them."""

_ROOT = str(Path(__file__).resolve().parents[2])


class Forked:
    """A process that is a fork of the server. It is killed when this is closed, and when this process ends.

    Attributes:
        stdin: the file descriptor to write to.
        stdout: the file descriptor to read from; -1 if it was given another.
    """

    def __init__(self, own: socket.socket, stdin: int, stdout: int) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._own, self._heard = own, b""
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, seconds: float) -> bytes | None:
        """Returns what the process has written: nothing if it has closed its stdout, None if it takes too long."""
        poll = select.poll()
        poll.register(self.stdout, select.POLLIN)
        return os.read(self.stdout, 1 << 16) if poll.poll(max(0.0, seconds) * 1e3) else None

    def wait(self) -> int:
        """Waits until the process has ended. Returns its exit status, or the negative number of a signal."""
        while self._status is None:
            try:
                piece = self._own.recv(64)
            except ConnectionError:
                piece = b""
            self._heard += piece
            if not piece:
                self._status = -signal.SIGKILL  # the server has ended, and its forks with it
            elif self._heard.endswith(b"\n"):
                self._status = int(self._heard)
        return self._status

    def close(self) -> None:
        """Kills the process if it is running, without waiting for its end."""
        self._own.close()
        for file in {self.stdin, self.stdout} - {-1}:
            os.close(file)
        self.stdin = self.stdout = -1


class Server:
    """The server of this process and of its forks. Where a variable of `_AT_IMPORT` has changed, another is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._variables: dict[str, str] = {}
        self._control: socket.socket | None = None

    def send(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> tuple[socket.socket, socket.socket]:
        """Sends a request, to a new server if there is none. Returns the request's own socket, and the server's.

        Raises:
            OSError: the server has ended.
        """
        control = self._started()
        own, other = socket.socketpair()
        try:
            with other:
                socket.send_fds(control, [b"+"], [other.fileno(), *files])
            own.sendall(json.dumps(request).encode() + b"\n")
        except BaseException as error:
            own.close()
            if isinstance(error, OSError):
                self.end(control)
            raise
        return own, control

    def start(self, request: Mapping[str, Any], files: Sequence[int], seconds: float) -> socket.socket | None:
        """Sends a request and waits until the process has started. None if the server ends before it does.

        Raises:
            TimeoutError: the process does not start in time. The server was ended.
        """
        end = time.monotonic() + seconds
        for _ in range(2):  # the first server may have been idle for too long, or was killed
            try:
                own, control = self.send(request, files)
            except OSError:
                continue
            try:
                own.settimeout(max(1e-3, end - time.monotonic()))
                if own.recv(1):
                    own.settimeout(None)
                    return own
            except TimeoutError:
                own.close()
                self.end(control)
                raise
            except ConnectionError:
                pass
            except BaseException:
                own.close()
                raise
            own.close()
            self.end(control)
        return None

    def _started(self) -> socket.socket:
        with self._lock:
            variables = {
                name: value for name, value in os.environ.items() if name.startswith(_AT_IMPORT) and name not in _LATER
            }
            if self._control is not None and variables == self._variables:
                return self._control
            if ours := self._dropped():
                self._left.append(ours)  # it exits when its forks have ended
            self._left = [process for process in self._left if process.poll() is None]
            path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
            self._control, other = socket.socketpair()
            with other:
                self._process = subprocess.Popen(  # noqa: S603 - our own module under the running interpreter
                    [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.processes.server", str(other.fileno())],
                    env={**os.environ, "PYTHONPATH": path},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[other.fileno()],
                    start_new_session=True,  # Ctrl-C is handled by the caller
                )
            self._owner, self._variables = os.getpid(), variables
            return self._control

    def _dropped(self) -> subprocess.Popen[bytes] | None:
        """Forgets the server, and returns it if this process has started it, and not one that this is a fork of."""
        if self._control is None or self._process is None:
            return None
        self._control.close()
        process, self._process, self._control = self._process, None, None
        if self._owner == os.getpid():
            return process
        process.returncode = 0  # it is not a child of this process
        return None

    def end(self, control: socket.socket | None = None) -> None:
        """Ends the server with its forks. A fork of the process that started it only drops the reference.

        Args:
            control: the socket of the server that is meant. Another one stays. Default: all that there are.
        """
        with self._lock:
            ended = self._dropped() if control in (None, self._control) else None
            left, self._left = (self._left, []) if control is None and self._owner == os.getpid() else ([], self._left)
            for process in filter(None, [ended, *left]):
                process.kill()
                process.wait()


SERVER = Server()

atexit.register(SERVER.end)


def prepare(*modules: str) -> None:
    """Imports modules in the server, for the processes that need them later. Returns immediately."""
    with contextlib.suppress(OSError):  # they are imported when they are needed
        own, _ = SERVER.send({"module": "", "before": modules})
        own.close()


def forked(
    module: str,
    *arguments: str,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
    folder: str = "/",
    stdout: int | None = None,
    stderr: int | None = None,
    seconds: float = START,
) -> Forked:
    """Starts a process that calls `module.main(*arguments)` and exits. It is the leader of a group of its own.

    Args:
        module: a module of fuseconv.
        arguments: the arguments.
        before: modules that are imported in the server if they are not yet, with `module`. They are part of fuseconv
            or of what it needs, and run no code of users.
        environment: the environment variables that differ from those of this process.
        path: where Python looks for modules first. Default: the variable PYTHONPATH.
        folder: the working directory.
        stdout: the file descriptor for its output. Default: a pipe.
        stderr: the file descriptor for its errors. Default: they are dropped.
        seconds: the time limit for starting.

    Raises:
        UpstreamError: the server does not start.
        TimeoutError: the process does not start in time. The server was ended.
    """
    request = {
        "module": module,
        "arguments": arguments,
        "before": [*before, module],
        "environment": {**os.environ, **(environment or {})},
        "path": list(path if path is not None else filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))),
        "folder": folder,
    }
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        taken, stdin = os.pipe()
        given.callback(os.close, taken)
        kept.callback(os.close, stdin)
        output = -1
        if stdout is None:
            output, stdout = os.pipe()
            given.callback(os.close, stdout)
            kept.callback(os.close, output)
        if stderr is None:
            stderr = os.open(os.devnull, os.O_WRONLY)
            given.callback(os.close, stderr)
        if own := SERVER.start(request, (taken, stdout, stderr), seconds):
            kept.pop_all()
            return Forked(own, stdin, output)
    raise UpstreamError(
        f"the process that runs {module} does not start",
        where=sys.executable,
        fix="see `fuseconv doctor`, or free memory",
    )

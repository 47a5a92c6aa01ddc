"""Starts processes as forks of a server process. The server starts with the first fork and is kept for later forks.

A process that imports torch takes 1 s to start, and a process that converts takes 2 s. A fork takes 0.01 s.
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
"""The time limit in seconds for starting a process, including the import of torch."""

TIME_LIMIT = 3600.0
"""The default time limit in seconds of a process that calls a model, so that a model that hangs is an error."""

_END = 1.0
"""The time in seconds that a server gets to kill its forks and end. It is killed afterwards."""

_AT_IMPORT = ("CC", "CXX", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTORCH", "TORCH", "TRITON")
"""Prefixes of environment variables that are read while torch is imported. If such a variable changes, a new server is
started for the next process."""

_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables with a prefix in `_AT_IMPORT` that torch does not read during its import. torch also sets these variables
itself, so a change does not start a new server."""

_ROOT = str(Path(__file__).resolve().parents[2])


class Forked:
    """A process that is a fork of the server. It is killed when this object is closed or the calling process ends.

    Attributes:
        stdin: the file descriptor that writes to the stdin of the fork. It is -1 after `close`.
        stdout: the file descriptor that reads the stdout of the fork. It is -1 after `close`, or if the caller supplied
            the stdout.
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
        """Waits for output and returns it. Returns empty bytes if stdout is closed, or None at the time limit."""
        poll = select.poll()
        poll.register(self.stdout, select.POLLIN)
        return os.read(self.stdout, 1 << 16) if poll.poll(max(0.0, seconds) * 1e3) else None

    def wait(self, seconds: float | None = None) -> int:
        """Waits until the process has ended. Returns its exit status, or the negated number of the fatal signal.

        Args:
            seconds: the time limit in seconds. None to wait without a limit.

        Raises:
            TimeoutError: the process is still running after `seconds`. `close` then kills it.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while self._status is None:
            self._own.settimeout(None if end is None else max(1e-3, end - time.monotonic()))
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
        """Closes the pipes to the process, and kills it if it is still running. Does not wait until it has ended."""
        self._own.close()
        for file in {self.stdin, self.stdout} - {-1}:
            os.close(file)
        self.stdin = self.stdout = -1


class Server:
    """The client side of the server that this process and its forks use. Starts the server when it is needed.

    If an environment variable that `_AT_IMPORT` covers has changed, a new server is started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._variables: dict[str, str] = {}
        self._control: socket.socket | None = None

    def send(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> tuple[socket.socket, socket.socket]:
        """Sends a request to the server. Returns the socket of the request and the socket of the server.

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
        """Sends a request, waits until the process has started, and returns the socket of the request.

        If the server has ended, tries once more with a new server. Returns None if this server ends too.

        Raises:
            TimeoutError: the process does not start within `seconds`. The server is then killed too.
        """
        end = time.monotonic() + seconds
        for _ in range(2):  # the existing server may have exited because it was idle, or may have been killed
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
                self._left.append(ours)  # the old server exits when its forks have ended
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
                    start_new_session=True,  # the caller handles Ctrl-C
                )
            self._owner, self._variables = os.getpid(), variables
            return self._control

    def _dropped(self) -> subprocess.Popen[bytes] | None:
        """Drops the reference to the server. Returns the server's process, or None if this process did not start it."""
        if self._control is None or self._process is None:
            return None
        self._control.close()
        process, self._process, self._control = self._process, None, None
        if self._owner == os.getpid():
            return process
        process.returncode = 0  # the server is not a child of this process, so nothing may wait for it
        return None

    def end(self, control: socket.socket | None = None) -> None:
        """Ends the server and kills its forks, with all processes that the forks started.

        If a parent process started the server, only drops the reference to it.

        Args:
            control: the socket of the server to end. Other servers keep running. None to end all servers.
        """
        with self._lock:
            ended = self._dropped() if control in (None, self._control) else None
            left, self._left = (self._left, []) if control is None and self._owner == os.getpid() else ([], self._left)
            for process in filter(None, [ended, *left]):
                _end(process)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends a server process, and waits until it has ended."""
    server.terminate()
    try:
        server.wait(_END)
    except subprocess.TimeoutExpired:  # it is stopped, or inside of a long import
        server.kill()
        server.wait()


SERVER = Server()

atexit.register(SERVER.end)


def prepare(*modules: str) -> None:
    """Asks the server to import modules that later processes need, and returns without waiting for the imports."""
    with contextlib.suppress(OSError):  # without the server, the modules are imported when they are needed
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
    """Starts a process that calls `module.main(*arguments)` and exits. The process leads its own process group.

    Args:
        module: the dotted name of a module of fuseconv.
        arguments: the arguments of `main`.
        before: the names of modules that the server imports before it forks, in addition to `module`. They must belong
            to fuseconv or its dependencies, and must not run code of users.
        environment: environment variables to set in the process, in addition to the variables of this process.
        path: the folders to put first in `sys.path`. None for the folders in the variable PYTHONPATH.
        folder: the working directory of the process.
        stdout: the file descriptor to which the process's stdout is written. None for a pipe, which `Forked.stdout`
            reads.
        stderr: the file descriptor to which the process's stderr is written. None to discard stderr.
        seconds: the time limit for starting the process, in seconds.

    Raises:
        UpstreamError: the server does not start.
        TimeoutError: the process does not start within `seconds`. The server is then killed too.
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

"""The process of which the others are forks: `python -m fuseconv.processes.server SOCKET`.

It imports the modules that a request names, and forks. The fork runs one of them, and the server reports how it ended.
The server calls nothing of what it imports, because a fork may neither use a GPU that its parent has used, nor find the
threads of its parent. Modules that ask for a GPU while they are imported, as some of torch do, make torch ask NVML
instead of CUDA, because CUDA cannot be used in a fork after that.

A request is a byte on the socket with four files: a socket of its own, and the fork's stdin, stdout and stderr. JSON
follows on the socket of its own, which answers `+` and later the exit status. The fork is killed when that is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

IDLE = 300
"""The number of seconds without a request or a fork after which the server exits."""

_DIES_WITH_PARENT = 1


def serve(control: socket.socket) -> Callable[[], None] | None:
    """Serves requests until nobody can send more, and all forks have ended. In a fork, returns what it runs."""
    gc.disable()  # what is imported lives to the end, and nothing else is made here
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a fork has the variables of its request
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    is_open = True
    while is_open or forks:
        watched: list[Any] = [woken, *forks.values(), *([control] if is_open else [])]
        ready = select.select(watched, [], [], IDLE)[0]
        if not ready and not forks:
            control.shutdown(socket.SHUT_RD)  # what was sent before can be read; who sends later starts another server
        if woken in ready:
            os.read(woken, 1 << 10)
            _report_ended(forks)
        for process, own in list(forks.items()):
            if own in ready:
                _kill(process)
                forks.pop(process).close()
        if control in ready:
            byte, files, _, _ = socket.recv_fds(control, 1, 4)
            is_open = bool(byte)
            if byte and (run := _forked(files, forks)):
                for one in (control, *forks.values()):  # through which other processes could be asked for
                    one.close()
                for file in (woken, wakes):
                    os.close(file)
                return run
    return None


def _forked(files: Sequence[int], forks: dict[int, socket.socket]) -> Callable[[], None] | None:
    """Serves one request. In the fork, returns what it runs."""
    own = socket.socket(fileno=files[0])
    request = _read(own)
    for name in request["before"] if request else ():
        with contextlib.suppress(Exception):  # the fork imports it again, and says what is wrong
            import_module(name)
    process = -1
    if request and request["module"]:
        gc.freeze()  # else the first collection in a fork would copy every page that has an object
        server = os.getpid()
        if (process := os.fork()) == 0:
            gc.enable()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            own.close()
            return partial(_run, request, files[1:], server)
        forks[process] = own
        with contextlib.suppress(ConnectionError):  # nobody waits: the loop finds it closed
            own.sendall(b"+")
    else:
        own.close()
    for file in files[1:]:
        os.close(file)
    return None


def _read(own: socket.socket) -> dict[str, Any] | None:
    """Returns a request, or None if who sent it has ended meanwhile."""
    with own.makefile("rb") as stream:
        line = stream.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _report_ended(forks: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if own := forks.pop(ended[0], None):
                with own, contextlib.suppress(ConnectionError):
                    own.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _kill(process: int) -> None:
    """Kills a fork, and what it has started. It is a child that was not waited for: the number is still its own."""
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it had no time to become a group
        os.killpg(process, signal.SIGKILL)


def _run(request: dict[str, Any], files: Sequence[int], server: int) -> None:
    """Becomes the process that was asked for."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        raise SystemExit("the server has ended")
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = dict.fromkeys([*request["path"], *sys.path])
    sys.argv = [request["module"], *request["arguments"]]
    import_module(request["module"]).main(*request["arguments"])


def _end_as(run: Callable[[], None]) -> NoReturn:
    """Runs a fork to its end, without the quarter of a second that Python takes to free all modules."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - shown as Python shows it
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    if run := serve(socket.socket(fileno=int(sys.argv[1]))):
        _end_as(run)

"""Runs the server process, which forks all other processes: `python -m fuseconv.processes.server SOCKET`.

For each request, the server imports the modules that the request names, and forks. The fork runs one of these modules,
and the server reports the exit status of the fork. The server itself calls none of these modules, because a fork can
use neither a GPU that its parent has used nor the threads of its parent. Some modules of torch check during their
import whether there is a GPU. In the server, torch asks NVML for this instead of CUDA, because a fork could not use
CUDA if the server had initialized CUDA.

A request is one byte on the server's socket, together with four file descriptors: the request's own socket, and the
stdin, stdout and stderr of the fork. The client then sends JSON on the request's socket. The server answers `+` on this
socket when the fork has started, and the exit status when it has ended. Closing the socket kills the fork. SIGTERM
kills all forks and ends the server.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from fuseconv.processes.lifetime import end_with

IDLE = 300
"""The time in seconds after which the server exits if there is neither a request nor a running fork."""


def serve(control: socket.socket) -> Callable[[], None] | None:
    """Serves requests until no client is left and all forks have ended, and then returns None.

    In a fork, returns the function that the fork must run.
    """
    gc.disable()  # imported objects live until the process exits, and the server creates few others
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # only for the server: a fork uses the environment in its request
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    signal.signal(signal.SIGTERM, lambda *_: _end_with_forks(forks))
    is_open = True
    while is_open or forks:
        watched: list[Any] = [woken, *forks.values(), *([control] if is_open else [])]
        ready = select.select(watched, [], [], IDLE)[0]
        if not ready and not forks:
            control.shutdown(
                socket.SHUT_RD
            )  # requests already sent can still be read; later clients start a new server
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
                for one in (control, *forks.values()):  # the fork must not control the server or other forks
                    one.close()
                for file in (woken, wakes):
                    os.close(file)
                return run
    return None


def _forked(files: Sequence[int], forks: dict[int, socket.socket]) -> Callable[[], None] | None:
    """Serves one request. In the fork, returns the function that the fork must run. In the server, returns None."""
    own = socket.socket(fileno=files[0])
    request = _read(own)
    for name in request["before"] if request else ():
        with contextlib.suppress(Exception):  # the fork imports the module again, and reports the error
            import_module(name)
    process = -1
    if request and request["module"]:
        gc.freeze()  # otherwise the first collection in a fork would copy every memory page that holds an object
        server = os.getpid()
        if (process := os.fork()) == 0:
            gc.enable()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            own.close()
            return partial(_run, request, files[1:], server)
        forks[process] = own
        with contextlib.suppress(ConnectionError):  # the client has ended: the loop will find the socket closed
            own.sendall(b"+")
    else:
        own.close()
    for file in files[1:]:
        os.close(file)
    return None


def _read(own: socket.socket) -> dict[str, Any] | None:
    """Reads a request and returns it. Returns None if the client has ended before the request is complete."""
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
    """Kills a fork and its process group. The fork has not been waited for, so its process ID cannot be reused yet."""
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # the fork had no time to create its process group
        os.killpg(process, signal.SIGKILL)


def _end_with_forks(forks: Mapping[int, socket.socket]) -> NoReturn:
    """Kills the forks with their process groups, and exits. SIGKILL to the server would not end what a fork started."""
    for process in forks:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and is about to be removed from `forks`
            _kill(process)
    os._exit(0)


def _run(request: dict[str, Any], files: Sequence[int], server: int) -> None:
    """Runs the requested module in the fork, after setting up its standard streams, environment, folder and path."""
    end_with(server)
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
    """Runs the function of a fork and exits at once, which saves the 0.25 s in which Python frees all modules."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed as Python prints an uncaught exception
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads the stream any more
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    if run := serve(socket.socket(fileno=int(sys.argv[1]))):
        _end_as(run)

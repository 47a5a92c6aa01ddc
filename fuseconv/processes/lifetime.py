"""Ends processes: with their parent, however the parent ends, or at once."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    Args:
        parent: the process ID of the parent, to find out whether the parent has already ended.

    Raises:
        SystemExit: the parent has already ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the parent process has ended")


def end_at_once(status: int) -> NoReturn:
    """Runs the functions that are registered with `atexit`, flushes the standard streams, and ends this process.

    Python would first free all modules and objects. With torch imported, this takes up to several seconds on a busy
    machine, in which the process does not react. Threads that still run end too, without being waited for.

    Args:
        status: the exit status.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):  # nobody reads the stream any more
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # the output of C and C++ code
    os._exit(status)

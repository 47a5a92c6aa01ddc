"""Ends a process when its parent ends, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal

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

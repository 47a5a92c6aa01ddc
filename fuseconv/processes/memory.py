"""Keeps memory that was freed, for commands that compute with large tensors on the CPU."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 30


def keep_freed() -> None:
    """Lets this process keep up to 1 GiB of freed memory, and allocate tensors of up to 1 GiB from it.

    By default, glibc returns the memory of each tensor of more than 32 MiB to the kernel, which then has to clear its
    pages again for the next one: a third of the time in which a model of large images is converted.
    Commands that measure a model do not call this: the processes that run the model later do not have it. Does nothing
    with other C libraries.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _KEPT)

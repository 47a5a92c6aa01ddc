"""Imports torch and all that needs it in half of the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """For a process of our own: keeps the garbage collector from what is imported in this context for the first time.

    torch makes a million objects that live to the end. The collector would visit them some thirty times while they are
    made, and twice when the process exits: nearly half of the processor time of a process that only imports torch.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

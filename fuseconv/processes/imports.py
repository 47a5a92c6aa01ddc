"""Makes importing torch, and modules that import torch, take about half the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fuseconv.processes import interrupts


@contextmanager
def imports() -> Iterator[None]:
    """Disables the garbage collector inside the `with` block, in which torch is imported for the first time.

    Use it only in a process that fuseconv owns. Importing torch creates a million objects that live until the process
    exits. The collector would visit these objects some thirty times during the import and twice at exit, which is
    nearly half of the CPU time of a process that only imports torch. Afterwards, the objects are excluded from
    collection. Does nothing if torch is already imported or the collector is disabled.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed inside the block, even if Python dropped the exception there.
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
        interrupts.check()  # also if a module that an interrupt left half imported is imported again, which is an error

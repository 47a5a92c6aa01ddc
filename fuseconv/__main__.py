"""The command `fuseconv`, which is also `python -m fuseconv`, for when Python's scripts are not on the PATH."""

import gc
import signal
from typing import NoReturn

from fuseconv.cli import main
from fuseconv.processes import interrupts
from fuseconv.processes.lifetime import end_at_once

_ALLOCATIONS = 100_000
"""The number of new objects after which Python looks for garbage. Importing torch makes many objects that stay, among
which Python would look for garbage again and again with its default of 700."""


def start() -> NoReturn:
    """Runs the command line, and ends the process with its exit status."""
    gc.set_threshold(_ALLOCATIONS)
    interrupts.remember()
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt what is left to be ended
    end_at_once(status)


if __name__ == "__main__":
    start()

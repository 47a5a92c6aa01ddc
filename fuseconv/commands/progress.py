"""Shows progress on stderr, unless `-q` is given: a line per step with its duration, and a spinner on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fuseconv.commands.streams import is_quiet, tell_styled
from fuseconv.processes import interrupts
from fuseconv.targets import TARGETS


@contextmanager
def shown(step: str) -> Iterator[None]:
    """Returns a context manager that shows the name of a step while it runs, and prints its duration afterwards.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before the step, and Python dropped the exception.
    """
    interrupts.check()
    if is_quiet():
        yield
        return
    console = Console(stderr=True)
    start = time.monotonic()
    with console.status(f"{step} ...{_usually(step)}"):
        yield
    with console.capture() as line:
        console.print(f"[dim]{step:<18}{time.monotonic() - start:6.1f} s[/]", highlight=False, end="")
    tell_styled(line.get())


def _usually(step: str) -> str:
    """Returns how long a step usually takes, for the spinner. Empty unless the step writes a target that takes long."""
    words = step.split()
    usual = next((TARGETS[name].SPEC.usually for name in words if name in TARGETS), "") if "write" in words else ""
    return f" usually takes {usual}" if usual else ""

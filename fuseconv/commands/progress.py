"""Progress on stderr: one line per step with its duration, and a spinner if stderr is a terminal. Nothing with `-q`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fuseconv.commands.streams import is_quiet, tell_styled


@contextmanager
def shown(step: str) -> Iterator[None]:
    """Shows a step while it runs, and its duration when it has finished."""
    if is_quiet():
        yield
        return
    console = Console(stderr=True)
    start = time.monotonic()
    with console.status(f"{step} ..."):
        yield
    with console.capture() as line:
        console.print(f"[dim]{step:<18}{time.monotonic() - start:6.1f} s[/]", highlight=False, end="")
    tell_styled(line.get())

"""Benchmarks of one machine at the same time: they build in company, and time alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
COMPANY, WAITING, ALONE = "in company", "waiting", "alone"


class Turns:
    """A lock on a file of a folder that processes share; without a folder, of one process.

    Nobody is alone before all who are in company have left it, so every process is in company once, and first. The
    folder says what each of them is doing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @contextmanager
    def in_company(self) -> Iterator[None]:
        """Waits while somebody is alone."""
        with self._locked(fcntl.LOCK_SH, COMPANY):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nobody else is here."""
        with self._locked(fcntl.LOCK_EX, ALONE):
            yield

    @contextmanager
    def _locked(self, kind: int, doing: str) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        with (self.folder / LOCK).open("a") as file:
            self._says(WAITING)
            fcntl.flock(file, kind)
            self._says(doing)
            yield
        self._says(WAITING)

    def _says(self, doing: str) -> None:
        assert self.folder is not None
        (self.folder / str(os.getpid())).write_text(doing)


def state(folder: Path, process: int) -> str:
    """Returns what a process is doing; empty before it says so."""
    path = folder / str(process)
    return path.read_text() if path.exists() else ""

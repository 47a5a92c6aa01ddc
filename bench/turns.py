"""Benchmarks of one machine at the same time: they build in company, and time alone."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """A lock on a file that processes share; without a file, of one process.

    Nobody is alone before all who are in company have left it, so every process is in company once, and first.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @contextmanager
    def in_company(self) -> Iterator[None]:
        """Waits while somebody is alone."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nobody else is here."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        if self.path is None:
            yield
            return
        with self.path.open("a") as file:
            fcntl.flock(file, kind)
            yield

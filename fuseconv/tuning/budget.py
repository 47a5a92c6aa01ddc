"""Limits the time that a conversion spends on measurements."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LEAST = 30.0
"""The smallest budget in seconds. A process that times two small artifacts takes 3 seconds."""


@dataclass
class Budget:
    """A time limit that starts when the object is created.

    Attributes:
        seconds: the time limit in seconds. None for no limit.
        clock: a function that returns the current time in seconds.
        reserved: the time in seconds that is kept free for later work.
    """

    seconds: float | None
    clock: Callable[[], float] = time.monotonic
    reserved: float = 0.0

    def __post_init__(self) -> None:
        """Starts the clock."""
        self._start = self.clock()

    def affords(self, each: float, *, beside: float) -> int | None:
        """Returns how many tasks of `each` seconds fit in the remaining time, or None if there is no limit.

        Args:
            each: the duration of one task in seconds.
            beside: the time in seconds that must remain for other work.
        """
        if self.seconds is None:
            return None
        left = self.seconds - (self.clock() - self._start) - self.reserved - beside
        return max(int(left / each), 0)

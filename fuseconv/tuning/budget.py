"""The time that may be spent on measuring."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LEAST = 30.0
"""The smallest budget in seconds. A process that times two small artifacts takes three of them."""


@dataclass
class Budget:
    """A number of seconds from now on, or no limit.

    Attributes:
        seconds: the limit. None for no limit.
        clock: the clock, in seconds.
        reserved: the seconds that are needed for something else.
    """

    seconds: float | None
    clock: Callable[[], float] = time.monotonic
    reserved: float = 0.0

    def __post_init__(self) -> None:
        """Starts the clock."""
        self._start = self.clock()

    def affords(self, each: float, *, beside: float) -> int | None:
        """Returns how often something that takes `each` seconds fits, beside what takes others. None for no limit."""
        if self.seconds is None:
            return None
        left = self.seconds - (self.clock() - self._start) - self.reserved - beside
        return max(int(left / each), 0)

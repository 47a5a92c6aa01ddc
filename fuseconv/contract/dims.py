"""Symbolic dims with their ranges. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension: it has the same size in every input that names it, a multiple of `step` in [min, max].

    `min` and `max` are multiples of `step`.
    """

    name: str
    min: int
    max: int
    step: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.min}..{self.max}" + (f":{self.step}" if self.step > 1 else "")

    def allowed(self, size: int) -> int:
        """Returns the largest allowed size that is not above `size`, or the smallest if all are above."""
        return max(self.min, min(self.max, size) // self.step * self.step)

    def narrowed(self, low: int, high: int, step: int) -> Dim:
        """Returns the dim restricted to sizes within [low, high] that are multiples of `step`. It may be empty."""
        step = math.lcm(self.step, step)
        low, high = max(self.min, low), min(self.max, high)
        return Dim(self.name, -(-low // step) * step, high // step * step, step)

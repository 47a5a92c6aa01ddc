"""Symbolic sizes: a dim with its range, and a size that is computed from a dim.

Within one call, a dim has the same value everywhere. `value` converts the concrete size of an axis to the value of the
dim, and `refusal` says why a concrete size is not allowed. Nothing here imports torch.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

UNBOUNDED = sys.maxsize
"""The `max` of a dim without an upper bound."""


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension, which has the same size in every input that names it.

    The size is a multiple of `step` within [min, max]. `min` and `max` are multiples of `step` too.
    """

    name: str
    min: int
    max: int
    step: int = 1

    def __str__(self) -> str:
        # Only torch.export produces a range without an upper bound; the syntax of `--input` cannot express one.
        high = self.max if self.max < UNBOUNDED else ""
        return f"{self.name}:{self.min}..{high}" + (f":{self.step}" if self.step > 1 else "")

    def value(self, size: int) -> int:
        """Returns the value of the dim for an axis of this size: the size itself.

        Does not check the range.
        """
        return size

    def refusal(self, size: int) -> str:
        """Returns why this size is not allowed, or "" if it is."""
        # Without a maximum there is no comparison: during tracing, it would become a bound on the size.
        if size < self.min or (self.max < UNBOUNDED and size > self.max):
            return f"outside {self}"
        if self.step > 1 and size % self.step != 0:
            return f"not a multiple of {self.step}"
        return ""

    def allowed(self, size: int) -> int:
        """Returns the largest allowed size that does not exceed `size`, or else the smallest allowed size."""
        return max(self.min, min(self.max, size) // self.step * self.step)

    def narrowed(self, low: int, high: int, step: int) -> Dim:
        """Returns the dim restricted to sizes within [low, high] that are multiples of `step`.

        The range of the result may be empty.
        """
        step = math.lcm(self.step, step)
        low, high = max(self.min, low), min(self.max, high)
        return Dim(self.name, -(-low // step) * step, high // step * step, step)


@dataclass(frozen=True)
class Affine:
    """A size that is computed as `factor * dim + offset`, where `factor` is not 0."""

    dim: Dim
    factor: int
    offset: int = 0

    def __str__(self) -> str:
        return self._formula(f"({self.dim})")

    @property
    def name(self) -> str:
        """The name of the dim."""
        return self.dim.name

    def value(self, size: int) -> int | None:
        """Returns the value of the dim for an axis of this size, or None if no value gives this size.

        Does not check the range.
        """
        multiple = size - self.offset
        return multiple // self.factor if multiple % self.factor == 0 else None

    def refusal(self, size: int) -> str:
        """Returns why this size is not allowed, or "" if it is."""
        value = self.value(size)
        if value is None:
            return f"not {self._formula(self.name)}" if self.offset else f"not a multiple of {abs(self.factor)}"
        return f"outside {self}" if self.dim.refusal(value) else ""

    def _formula(self, dim: str) -> str:
        product = dim if self.factor == 1 else f"{self.factor}*{dim}"
        return f"{product}{self.offset:+d}" if self.offset else product


Size = int | Dim | Affine
"""The size of an axis: static, or symbolic."""

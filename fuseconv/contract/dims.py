"""Symbolic sizes: a dim with a range of values, and a size that is an affine function of a dim.

Within one call, a dim has the same value everywhere. `value` converts the concrete size of an axis to the value of the
dim, and `refusal` describes why a concrete size is not allowed. Nothing here imports torch.
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

    Attributes:
        name: the name of the dim.
        min: the smallest size, a multiple of `step`.
        max: the largest size, a multiple of `step`. `UNBOUNDED` if there is no upper bound.
        step: the number of which every size is a multiple.
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
        """Returns the value of the dim for an axis of this size: the size itself, even if it is out of range."""
        return size

    def refusal(self, size: int) -> str:
        """Returns the reason why this size is not allowed, or "" if it is allowed."""
        # Without a maximum, the size is not compared: during tracing, a comparison would become a guard on the size.
        if size < self.min or (self.max < UNBOUNDED and size > self.max):
            return f"outside {self}"
        if self.step > 1 and size % self.step != 0:
            return f"not a multiple of {self.step}"
        return ""

    def allowed(self, size: int) -> int:
        """Returns the largest allowed size up to `size`, or the smallest allowed size if `size` is less than `min`."""
        return max(self.min, min(self.max, size) // self.step * self.step)

    def narrowed(self, low: int, high: int, step: int) -> Dim:
        """Returns the dim restricted to sizes within [low, high] that are multiples of `step`.

        If there are no such sizes, the `min` of the result is greater than its `max`.
        """
        step = math.lcm(self.step, step)
        low, high = max(self.min, low), min(self.max, high)
        return Dim(self.name, -(-low // step) * step, high // step * step, step)


@dataclass(frozen=True)
class Affine:
    """A size that is `factor * dim + offset`, where `factor` is not 0."""

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
        """Returns the value of the dim for an axis of this size, or None if no integer value gives this size.

        The range of the dim is not checked.
        """
        multiple = size - self.offset
        return multiple // self.factor if multiple % self.factor == 0 else None

    def refusal(self, size: int) -> str:
        """Returns the reason why this size is not allowed, or "" if it is allowed."""
        value = self.value(size)
        if value is None:
            return f"not {self._formula(self.name)}" if self.offset else f"not a multiple of {abs(self.factor)}"
        return f"outside {self}" if self.dim.refusal(value) else ""

    def _formula(self, dim: str) -> str:
        product = dim if self.factor == 1 else f"{self.factor}*{dim}"
        return f"{product}{self.offset:+d}" if self.offset else product


Size = int | Dim | Affine
"""The size of an axis: static, or symbolic."""

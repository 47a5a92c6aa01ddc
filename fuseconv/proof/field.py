"""The integers modulo a prime, and unknown functions on them.

Two expressions of sums and products that agree at random points of a large field are equal, but with a probability of
about their degree in 2**31 (Schwartz 1980, Zippel 1979). A function that is no polynomial is taken to be a random one,
the same wherever it is called; of an even function an even one, of an odd function an odd one.
"""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import torch

PRIME = 2**31 - 1
"""The product of two residues fits in an int64. It is 3 modulo 4: then squares have a root that is a power of them."""

_HALF = 16
_DEGREE = 4
_SHORT = 10**6
_SHORT_SQUARE = 10**4
_BITS = 20
_INFINITY = 1_234_567_891


class NotApplicableError(Exception):
    """Something is no sum or product, and no function that may be taken to be any."""


class Field:
    """The field, and what was taken for granted in it.

    Attributes:
        assumed: functions that were drawn, and numbers that stand for rounded ones: two programs that are unequal by
            these may be equal by what the functions are, or by what the numbers were before they were rounded.
    """

    def __init__(self, seed: int) -> None:
        self.assumed: set[str] = set()
        self._seed = seed

    def number(self, value: float) -> int:
        """Returns the residue of a number: of the short fraction, or its root, that it is the nearest float of.

        A float that is neither stands for itself.

        Raises:
            NotApplicableError: of NaN.
        """
        if value != value:
            raise NotApplicableError("NaN")
        if abs(value) == float("inf"):
            self.assumed.add("infinity")
            return int(value > 0 or -1) * _INFINITY % PRIME
        exact = Fraction(value)
        short = exact.limit_denominator(_SHORT)
        if float(short) == value:
            exact = short
        elif (root := self._as_root(value)) is not None:
            return root
        elif exact.numerator.bit_length() > _BITS:
            self.assumed.add(f"the number {value!r}")
        return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME

    def _as_root(self, value: float) -> int | None:
        """The residue of the root of a short fraction; the product of two roots is the root of the product."""
        square = Fraction(value * value).limit_denominator(_SHORT_SQUARE)
        if not math.isclose(math.sqrt(square), abs(value), rel_tol=2e-16, abs_tol=0):
            return None
        self.assumed.add(f"the number {value!r}")
        residue = square.numerator * pow(square.denominator, -1, PRIME) % PRIME
        return (1 if value > 0 else -1) * pow(residue, (PRIME + 1) // 4, PRIME) % PRIME

    def root(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the root of a square that is a square itself; of any value, so that it is multiplicative."""
        self.assumed.add("sqrt")
        return power(value, (PRIME + 1) // 4)

    def function(self, name: str, value: torch.Tensor, parity: int | None = None) -> torch.Tensor:
        """Returns a random polynomial of a value; its exponents are even where `parity` is 0, odd where it is 1."""
        self.assumed.add(name)
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self._seed)
        result = torch.zeros_like(value)
        for exponent in range(_DEGREE, -1, -1):
            drawn = int(torch.randint(1, PRIME, (1,), generator=draw))
            result = (result * value + (drawn if parity is None or exponent % 2 == parity else 0)) % PRIME
        return result


def power(base: torch.Tensor, exponent: int) -> torch.Tensor:
    """Returns base ** exponent, exponent >= 0."""
    result = torch.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % PRIME
        base = base * base % PRIME
        exponent >>= 1
    return result


def inverse(value: torch.Tensor) -> torch.Tensor:
    """Returns 1 / value, as value ** (PRIME - 2) (Fermat).

    Raises:
        NotApplicableError: of 0.
    """
    if bool((value == 0).any()):
        raise NotApplicableError("a division by zero")
    return power(value, PRIME - 2)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns a @ b, `a` in halves of 16 bits: then sums of 2**16 products fit in an int64."""
    high, low = a >> _HALF, a & ((1 << _HALF) - 1)
    return (((high @ b) % PRIME << _HALF) + low @ b) % PRIME

"""Arithmetic modulo a prime, and random functions on residues.

Two expressions of sums and products that agree at random points of a large field are equal. The probability of an error
is about their degree divided by 2**31 (Schwartz 1980, Zippel 1979). A function that is not a polynomial is modeled as a
random function: the same function in every call, an even one for an even function, an odd one for an odd function.
"""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import torch

PRIME = 2**31 - 1
"""The prime. The product of two residues fits in int64. The prime is 3 modulo 4, so that the square root of a square is
a power of it."""

_HALF = 16
_DEGREE = 4
_SHORT = 10**6
_SHORT_SQUARE = 10**4
_BITS = 20
_INFINITY = 1_234_567_891


class NotApplicableError(Exception):
    """Algebra is not applicable: an op is neither a sum nor a product nor a function that may be modeled as random."""


class Field:
    """The field of residues modulo `PRIME`, and the assumptions that were made in it.

    Attributes:
        assumed: the random functions, and the floats that may be rounded. If two programs differ, but use these, they
            may still be equal by an identity of the functions, or with the numbers before rounding.
    """

    def __init__(self, seed: int) -> None:
        self.assumed: set[str] = set()
        self._seed = seed

    def number(self, value: float) -> int:
        """Returns the residue of a number.

        If the number is the nearest float to a simple fraction, or to the square root of one, it stands for that
        fraction or root. Any other float stands for itself.

        Raises:
            NotApplicableError: the number is NaN.
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
        """Returns the residue of a number that is the square root of a simple fraction. Returns None for other numbers.

        The product of the roots of two numbers is the root of their product.
        """
        square = Fraction(value * value).limit_denominator(_SHORT_SQUARE)
        if not math.isclose(math.sqrt(square), abs(value), rel_tol=2e-16, abs_tol=0):
            return None
        self.assumed.add(f"the number {value!r}")
        residue = square.numerator * pow(square.denominator, -1, PRIME) % PRIME
        return (1 if value > 0 else -1) * pow(residue, (PRIME + 1) // 4, PRIME) % PRIME

    def root(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a power that is a square root of each value that is a square.

        The power is multiplicative for all values: the root of a product is the product of the roots.
        """
        self.assumed.add("sqrt")
        return power(value, (PRIME + 1) // 4)

    def function(self, name: str, value: torch.Tensor, parity: int | None = None) -> torch.Tensor:
        """Returns a random polynomial of a value. Its exponents are all even if `parity` is 0, all odd if it is 1."""
        self.assumed.add(name)
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self._seed)
        result = torch.zeros_like(value)
        for exponent in range(_DEGREE, -1, -1):
            drawn = int(torch.randint(1, PRIME, (1,), generator=draw))
            result = (result * value + (drawn if parity is None or exponent % 2 == parity else 0)) % PRIME
        return result


def power(base: torch.Tensor, exponent: int) -> torch.Tensor:
    """Returns base ** exponent, for exponent >= 0."""
    result = torch.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % PRIME
        base = base * base % PRIME
        exponent >>= 1
    return result


def inverse(value: torch.Tensor) -> torch.Tensor:
    """Returns 1 / value, computed as value ** (PRIME - 2) by Fermat's little theorem.

    Raises:
        NotApplicableError: an element is 0.
    """
    if bool((value == 0).any()):
        raise NotApplicableError("a division by zero")
    return power(value, PRIME - 2)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns a @ b. `a` is split into 16-bit halves, so that sums of 2**16 products fit in int64."""
    high, low = a >> _HALF, a & ((1 << _HALF) - 1)
    return (((high @ b) % PRIME << _HALF) + low @ b) % PRIME

"""Arithmetic modulo a prime, and random functions on residues.

If two expressions of sums and products agree at random points of a large field, they are equal. The probability of an
error is about their degree divided by 2**31 (Schwartz 1980, Zippel 1979). A function that is not a polynomial, such as
exp, is modeled as a random polynomial. Each function has the same polynomial in every call, and an even or odd function
has an even or odd polynomial.
"""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import torch

PRIME = 2**31 - 1
"""The prime. The product of two residues fits in int64. The prime is 3 modulo 4, so that a square root of a square is
a power of the square."""

_HALF = 16
_DEGREE = 4
_SHORT = 10**6
_SHORT_SQUARE = 10**4
_BITS = 20
_INFINITY = 1_234_567_891


class NotApplicableError(Exception):
    """Algebra is not applicable: an op is neither a sum nor a product nor a function that may be modeled as random."""


class Field:
    """The field of residues modulo `PRIME`, and the assumptions that the evaluation of programs has made.

    Attributes:
        assumed: the names of the functions that were modeled as random, and the floats that may have been rounded. If
            two programs differ in the field but use any of these, they may still be equal: by an identity of the
            functions, or with the exact numbers.
    """

    def __init__(self, seed: int) -> None:
        self.assumed: set[str] = set()
        self._seed = seed

    def number(self, value: float) -> int:
        """Returns the residue that represents a number in the field.

        A number that is the nearest float to a simple fraction gives the residue of that fraction. The same holds for
        the square root of a simple fraction. Any other float is taken as exact.

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
        """Returns the residue of a number that is a square root of a simple fraction, or None for any other number.

        The root is multiplicative: the product of the roots of two numbers is the root of their product.
        """
        square = Fraction(value * value).limit_denominator(_SHORT_SQUARE)
        if not math.isclose(math.sqrt(square), abs(value), rel_tol=2e-16, abs_tol=0):
            return None
        self.assumed.add(f"the number {value!r}")
        residue = square.numerator * pow(square.denominator, -1, PRIME) % PRIME
        return (1 if value > 0 else -1) * pow(residue, (PRIME + 1) // 4, PRIME) % PRIME

    def root(self, value: torch.Tensor) -> torch.Tensor:
        """Returns value ** ((PRIME + 1) / 4), which is a square root of each element that is a square in the field.

        The result is multiplicative for all elements: the root of a product is the product of the roots.
        """
        self.assumed.add("sqrt")
        return power(value, (PRIME + 1) // 4)

    def function(self, name: str, value: torch.Tensor, parity: int | None = None) -> torch.Tensor:
        """Evaluates a random polynomial, which models a function, at each element of a tensor of residues.

        Args:
            name: the name of the function. Together with the seed of the field, it determines the polynomial.
            value: the residues.
            parity: 0 for a polynomial with even exponents only, 1 for odd exponents only, None for all exponents.
        """
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

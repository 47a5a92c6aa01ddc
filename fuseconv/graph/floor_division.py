"""A normal form of floor divisions and remainders in sizes, for sizes that torch's solver does not prove equal.

Models halve the sizes of images several times, and the same size then has several spellings: `(32*s - 1)//64 + 1` and
`(s - 1)//2 + 1`. Models that pad an image to whole windows view `s + (-s) % 7` rows as `(s + (-s) % 7)//7` windows of 7
rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any


def same_quotients(one: Any, other: Any) -> bool:
    """Returns whether two sympy expressions of integers are equal because their divisions are."""
    from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

    kinds = (FloorDiv, Mod, PythonMod)
    divides = any(getattr(side, "is_Integer", None) is False and side.has(*kinds) for side in (one, other))
    return divides and bool(normal_form(one - other) == 0)


@lru_cache(1 << 14)
def normal_form(expression: Any) -> Any:
    """Returns a sympy expression of integers, with floor divisions of small numbers, and without most remainders.

    For integers, `(q*a + b)//q` is `a + b//q`, `(g*a + b)//(g*q)` is `(a + b//g)//q`, and `a % q` is
    `a - q*(a//q)`, for a positive number q. If the divisor b is no number, `(a*b)//b` is a, and `(a*b) % b` is 0. Other
    divisions stay as they are.
    """
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

    def rewritten(division: Any) -> Any:
        dividend, divisor = division.args
        quotient = _quotient(dividend, divisor)
        if quotient is None:
            return division
        return quotient if isinstance(division, FloorDiv) else dividend - divisor * quotient

    return sympy.expand(expression.replace(lambda part: isinstance(part, FloorDiv | Mod | PythonMod), rewritten))


def _quotient(dividend: Any, divisor: Any) -> Any:
    """Returns `dividend // divisor`, or None if the divisor is not a positive number and does not divide exactly."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv

    number, others = sympy.expand(dividend).as_coeff_Add()
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(others)]
    if not all(factor.is_Integer for factor in (divisor, number, *(factor for factor, _ in terms))) or divisor <= 0:
        exact = sympy.cancel(dividend / divisor)
        return exact if exact.is_integer and sympy.denom(exact) == 1 else None
    whole = sum(factor // divisor * symbols for factor, symbols in terms)
    rest = {symbols: factor % divisor for factor, symbols in terms}
    common = math.gcd(int(divisor), *map(int, rest.values()))
    left = sum((factor // common * symbols for symbols, factor in rest.items()), number // common)
    return whole + FloorDiv(left, divisor // common)

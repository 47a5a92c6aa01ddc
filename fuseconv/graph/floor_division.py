"""A normal form of floor divisions in symbolic sizes, for sizes that torch's solver does not prove equal.

Models halve the sizes of images several times, and the same size then has several spellings: `(32*s - 1)//64 + 1` and
`(s - 1)//2 + 1`.
"""

from __future__ import annotations

import math
from typing import Any


def same_quotients(one: Any, other: Any) -> bool:
    """Returns whether two sympy expressions of integers are equal because their floor divisions are."""
    from torch.utils._sympy.functions import FloorDiv

    divides = any(getattr(side, "is_Integer", None) is False and side.has(FloorDiv) for side in (one, other))
    return divides and bool(normal_form(one - other) == 0)


def normal_form(expression: Any) -> Any:
    """Returns a sympy expression of integers, with floor divisions of small numbers.

    For integers, `(q*a + b)//q` is `a + b//q`, and `(g*a + b)//(g*q)` is `(a + b//g)//q`. The divisor must be a number.
    """
    import sympy
    from torch.utils._sympy.functions import FloorDiv

    return sympy.expand(expression.replace(FloorDiv, _divided))


def _divided(dividend: Any, divisor: Any) -> Any:
    """Returns `dividend // divisor`."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv

    number, others = sympy.expand(dividend).as_coeff_Add()
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(others)]
    if not all(factor.is_Integer for factor in (divisor, number, *(factor for factor, _ in terms))) or divisor <= 0:
        return FloorDiv(dividend, divisor)
    whole = sum(factor // divisor * symbols for factor, symbols in terms)
    rest = {symbols: factor % divisor for factor, symbols in terms}
    common = math.gcd(int(divisor), *map(int, rest.values()))
    left = sum((factor // common * symbols for symbols, factor in rest.items()), number // common)
    return whole + FloorDiv(left, divisor // common)

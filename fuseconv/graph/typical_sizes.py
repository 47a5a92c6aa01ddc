"""The size that a symbolic size has in a typical call, for decisions about speed.

A program is captured at small sizes, so the values that torch keeps for its symbols (`SymInt.node.hint`) say nothing
about the calls that it will get. The middle of a symbol's range is closer to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import SymInt

DEFAULT_END = 1024
"""The assumed end of a range that has none."""

_NO_END = 1 << 31
"""A range that ends here or later has no end."""


def typical(size: int | SymInt) -> int:
    """Returns a size as it is if each symbol has the value in the middle of its range."""
    if isinstance(size, int):
        return size
    expression, ranges = size.node.expr, size.node.shape_env.var_to_range
    return int(expression.xreplace({symbol: middle(*ends(ranges[symbol])) for symbol in expression.free_symbols}))


def ends(values: Any, largest: int = _NO_END) -> tuple[int, int]:
    """Returns the first and the last value of a symbol that are typical. 0 and 1 are not.

    Args:
        values: the range of the symbol, a `torch.utils._sympy.value_ranges.ValueRanges`.
        largest: the largest value to return.
    """
    last = int(values.upper) if values.upper < _NO_END else DEFAULT_END
    return max(int(values.lower), 2), min(last, largest)


def middle(first: int, last: int) -> int:
    """Returns the middle of two values, or the first if the last is smaller."""
    return max(first, (first + last) // 2)

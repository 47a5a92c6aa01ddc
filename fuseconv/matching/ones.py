"""Strides at sizes of 1, where a reshape that copies at all larger sizes may return a view that is not row-major.

torch.export assumes that every symbolic size is at least 2, so the strides in the graph do not show this. An op that
needs row-major strides, such as a later view, would fail at a size of 1 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import torch
from torch.utils._sympy.value_ranges import bound_sympy

from fuseconv.matching.graph import map_nodes

_OTHER = 5040
"""A size other than 1. Many numbers divide it, so that sizes such as n / 4 are whole numbers."""

_MOST = 4
"""The maximum number of symbolic sizes in the shape of a value that may be 1 in any combination."""

Sizes: TypeAlias = Mapping[Any, int]
"""The values of the symbolic sizes that may be 1. All others are not 1."""


def values_at_one(fake: torch.Tensor, ranges: Mapping[Any, Any]) -> list[tuple[Sizes, torch.Tensor]] | None:
    """Returns a tensor on the meta device for each combination of sizes in which at least one symbolic size is 1.

    Returns None if there are too many combinations.

    Args:
        fake: a fake tensor with symbolic sizes.
        ranges: the declared range of each symbolic size.
    """
    sizes = [size.node.expr for size in (*fake.shape, *fake.stride()) if isinstance(size, torch.SymInt)]
    symbols = sorted({symbol for size in sizes for symbol in size.free_symbols}, key=str)
    ones = [symbol for symbol in symbols if 1 in bound_sympy(symbol, dict(ranges))]
    if len(ones) > _MOST:
        return None
    choices = [dict(zip(ones, chosen, strict=True)) for chosen in product((1, _OTHER), repeat=len(ones))]
    return [
        (given, torch.empty_strided(_number(fake.shape, given), _number(fake.stride(), given), device="meta"))
        for given in choices
        if 1 in given.values()
    ]


def called_at_one(
    op: Callable[..., Any], value: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], given: Sizes
) -> torch.Tensor:
    """Calls an op on a tensor from `values_at_one` and on other arguments, which may contain nodes, at the same sizes.

    Raises:
        RuntimeError: the op does not accept the value at these sizes.
    """

    def number(argument: Any) -> Any:
        return _number(map_nodes(argument, lambda node: node.meta["val"]), given)

    result: torch.Tensor = op(value, *map(number, args), **{name: number(one) for name, one in kwargs.items()})
    return result


def _number(value: Any, given: Sizes) -> Any:
    """Returns a value with a number for each symbolic size."""
    if isinstance(value, torch.SymInt):
        expr = value.node.expr
        return int(expr.subs({symbol: given.get(symbol, _OTHER) for symbol in expr.free_symbols}))
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(_number(value.shape, given), _number(value.stride(), given), device="meta")
    if isinstance(value, list | tuple | torch.Size):
        return [_number(one, given) for one in value]
    return value

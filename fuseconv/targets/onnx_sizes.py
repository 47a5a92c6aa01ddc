"""Ranges of the sizes in the shapes of an ONNX model and of the exported program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


class Sizes:
    """The smallest and the largest value of each size.

    Args:
        ranges: maps each symbol in the shapes of the model to its range of sizes.
    """

    def __init__(self, ranges: Mapping[sympy.Symbol, ValueRanges[Any]]) -> None:
        self._ranges = dict(ranges)
        self._symbols = {str(symbol): symbol for symbol in ranges}

    def smallest(self, size: int | ir.SymbolicDim) -> int:
        """Returns the smallest value that a size can have, which is 0 if its range is unknown."""
        found = self._range(size)
        return 0 if found is None else max(int(found.lower), 0)

    def largest(self, size: int | ir.SymbolicDim) -> float:
        """Returns the largest value that a size can have: infinity if unbounded, but 1 if its range is unknown."""
        found = self._range(size)
        return 1 if found is None else _number(found.upper)

    def _range(self, size: int | ir.SymbolicDim) -> ValueRanges[Any] | None:
        if isinstance(size, int):
            return ValueRanges(size, size)
        if size.value is None:
            return None
        expression = sympy.sympify(size.value, locals=self._symbols)
        return bound_sympy(expression, self._ranges) if expression.free_symbols <= self._ranges.keys() else None


def largest(size: int | torch.SymInt) -> float:
    """Returns the largest value that a size in an exported program can have, which is infinite if it is unbounded."""
    return size if isinstance(size, int) else _number(size.node.shape_env.bound_sympy(size.node.expr).upper)


def _number(bound: Any) -> float:
    return int(bound) if bound < _UNBOUNDED else math.inf


_UNBOUNDED = 2**62
"""torch.export writes some unbounded ranges with an upper bound of about 2**63."""

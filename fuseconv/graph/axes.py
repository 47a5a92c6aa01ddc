"""How views arrange the elements of a tensor: each axis of a view is a product of factors of the axes of its base.

A view of [L, B * H, D] as [L, B, H, D] splits an axis into two factors, a permutation moves axes, and a view as
[B * H, L, D] merges two of them. Once each axis is a list of factors, a chain of views is known as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy


@dataclass(eq=False)
class Factor:
    """A factor of an axis of the base. Two factors are equal only if they are the same object.

    Attributes:
        size: the number of positions, as a sympy expression.
    """

    size: Any


class Axes:
    """The axes of a view in terms of the axes of its base.

    Attributes:
        base: the factors of each axis of the base, from the slowest to the fastest. None for an axis of size 1.
        axes: the factors of each axis of the view.
        selected: maps each factor at which the view keeps a single position to this position.
    """

    def __init__(self, sizes: Sequence[Any]) -> None:
        self.base: list[list[Factor]] = [[Factor(size)] if size != 1 else [] for size in map(expression, sizes)]
        self.axes: list[list[Factor]] = [list(axis) for axis in self.base]
        self.selected: dict[Factor, int] = {}

    def view(self, sizes: Sequence[Any]) -> bool:
        """Applies a view with the given sizes, and returns whether it splits and merges whole factors."""
        left = [factor for axis in self.axes for factor in axis][::-1]
        axes: list[list[Factor]] = []
        for size in map(expression, sizes):
            axes.append([])
            wanted = size
            while wanted != 1:
                if not left:
                    return False
                factor = left.pop()
                if (rest := _quotient(wanted, factor.size)) is not None:
                    wanted = rest
                elif (rest := _quotient(factor.size, wanted)) is not None:
                    factor, second = self._split(factor, wanted, rest)
                    left.append(second)
                    wanted = sympy.Integer(1)
                else:
                    return False
                axes[-1].append(factor)
        self.axes = axes
        return not left

    def permute(self, order: Sequence[int]) -> None:
        """Applies a permutation: axis i of the result is axis order[i]."""
        self.axes = [self.axes[axis] for axis in order]

    def select(self, axis: int, position: int) -> bool:
        """Keeps one position of an axis and removes the axis. Returns whether the axis is a single factor."""
        factors = self.axes.pop(axis)
        if len(factors) == 1:
            self.selected[factors[0]] = position
        return len(factors) <= 1

    def join(self, order: Sequence[Factor]) -> tuple[list[Factor], list[tuple[int, int]]]:
        """Joins factors that follow one another both in an order of the factors and in an axis of the view.

        Returns:
            The order with the joined factors, and the first and last position of each group of factors before. The last
            group comes first: joining it does not change the positions of the others.
        """
        groups: list[list[Factor]] = []
        for factor in order:
            if groups and any(pair == (groups[-1][-1], factor) for axis in self.axes for pair in pairwise(axis)):
                groups[-1].append(factor)
            else:
                groups.append([factor])
        ends, at = [], len(order)
        for number, group in reversed([*enumerate(groups)]):
            at -= len(group)
            if len(group) > 1:
                ends.append((at, at + len(group) - 1))
                groups[number] = [Factor(sympy.prod([factor.size for factor in group]))]
                for axis in (*self.base, *self.axes):
                    if group[0] in axis and group[-1] in axis:
                        axis[axis.index(group[0]) : axis.index(group[-1]) + 1] = groups[number]
        return [group[0] for group in groups], ends

    def _split(self, factor: Factor, first: Any, second: Any) -> tuple[Factor, Factor]:
        parts = Factor(first), Factor(second)
        for axis in (*self.base, *self.axes):
            if factor in axis:
                at = axis.index(factor)
                axis[at : at + 1] = parts
        return parts


def expression(size: Any) -> Any:
    """Returns a size, which may be symbolic, as a sympy expression."""
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def _quotient(a: Any, b: Any) -> Any:
    """Returns a / b if it is a whole number for all values of the symbols, and None if this is unknown."""
    if a == b:
        return sympy.Integer(1)
    if b == 0:
        return None
    if a.is_Integer and b.is_Integer:
        return None if a % b else a // b
    if not (a.is_polynomial() and b.is_polynomial()):
        return None
    quotient = sympy.cancel(a / b)
    return quotient if quotient.as_numer_denom()[1] == 1 else None

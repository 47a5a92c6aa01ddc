"""Edges, the values at which ops change behavior: values next to literals of the program, halves, zeros and extremes.

A rule that omits a bound, or rounds halves differently, is correct for almost all values. Tests at edges find the
values for which such a rule is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fuseconv.graph.nodes import facts_of, is_call

NEAR = 64.0
"""Literals up to this magnitude count as near 0 and are combined with each other. Functions of larger numbers may
overflow, so larger literals are tested separately, as `far edge`."""

SMALL = 1e-3
"""A literal up to this magnitude is assumed to be an epsilon: an added number or a lower bound."""

BEYOND_A_BYTE, LONGEST = 300, 2048
"""A size that does not fit in 8 bits, and the maximum size that is tested."""

COMBINED = 6
"""The maximum number of literals whose quotients, products, sums and differences are tested. With the literals 5 and
16, for example, 5 / 16 is tested, where `x * 16` is 5."""

_FLOATS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5)
_INTEGERS = (0, 1, -1, 2, -2, 3, -3, 7, -8, 100)

_REDUCES = ("sum", "mean", "prod", "amax", "amin", "any", "all", "cumsum", "max", "min", "argmax", "argmin")
"""Further ops that use the elements of integer tensors as numbers, like elementwise ops and ops that move elements."""

_DIVIDES = ("div", "remainder", "fmod", "floor_divide", "__rshift__", "__lshift__")


@dataclass(frozen=True)
class Edges:
    """The properties of a program that determine the values on which it is tested.

    Attributes:
        literals: the numbers in the program, except NaN and infinity.
        sums: whether the program sums elements. Near the largest number of a dtype, a sum may overflow in one order but
            not in another.
        integers: how the program uses integers. `indices`: as indices, which must be small and not negative. `signed`:
            as indices that may be negative. `divided`: in divisions, so that 0 and the minimum of the dtype, with which
            divisions fail, are excluded. `any`: as numbers without restrictions.
    """

    literals: tuple[float, ...] = ()
    sums: bool = True
    integers: Literal["indices", "signed", "divided", "any"] = "indices"

    def scales(self) -> list[float]:
        """Returns the magnitudes at which small literals matter: those up to `SMALL` and their square roots, sorted."""
        small = {abs(one) for one in self.literals if 0 < abs(one) <= SMALL}
        return sorted({*small, *(math.sqrt(one) for one in small)})

    def length(self) -> int:
        """Returns a size that does not fit in 8 bits and exceeds every whole literal up to `LONGEST` in the program."""
        whole = [int(abs(one)) for one in self.literals if one == int(one) and abs(one) <= LONGEST]
        return max([BEYOND_A_BYTE, *(one + 3 for one in whole)])


NOTHING = Edges()


def edges_of(graphs: Iterable[Graph], constants: Iterable[Any] = ()) -> Edges:
    """Collects the literals of programs, and how the programs use integers and sums.

    Args:
        graphs: the graphs of the programs. The `meta["val"]` of their nodes gives the dtypes.
        constants: values that the programs use. A tensor with one element counts as a literal; others are ignored.
    """
    calls = [node for graph in graphs for node in graph.nodes if is_call(node)]
    found = {number for node in calls for number in _numbers(node)}
    found |= {
        float(one.detach()) for one in constants if isinstance(one, torch.Tensor) and one.numel() == 1 and _is_real(one)
    }
    literals = tuple(sorted(number for number in found if math.isfinite(number)))
    sums = not all(_is_apart(node) for node in calls)
    if not all(_reads_elements(node) for node in calls):
        return Edges(literals, sums)
    divides = any(word in str(node.target) for node in calls for word in _DIVIDES)
    return Edges(literals, sums, "divided" if divides else "any")


def _numbers(node: Node) -> Iterator[float]:
    for value in pytree.tree_leaves((node.args, node.kwargs)):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)


def _is_real(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and tensor.dtype != torch.bool


def _is_apart(node: Node) -> bool:
    """Returns whether an op processes each element independently and overflows only where its result overflows.

    Elementwise ops are recognized by the tag `torch.Tag.pointwise`. hardswish lacks the tag: it multiplies by up to 6
    before it divides by 6, so it may overflow although its result does not.
    """
    op: Any = node.target
    known = facts_of(node)
    return torch.Tag.pointwise in op.tags or bool(known.moved) or known.metadata_only


def _reads_elements(node: Node) -> bool:
    """Returns whether an op uses its integer operands only as numbers, not as indices or counts."""
    op: Any = node.target
    if (_is_apart(node) and not facts_of(node).positions) or op._schema.name.removeprefix("aten::") in _REDUCES:
        return True
    return not any(_may_be_integer(operand) for operand in node.all_input_nodes)


def _may_be_integer(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value is None
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


@lru_cache(256)
def near_edges(edges: Edges, dtype: torch.dtype, values: Literal["edge", "far edge"]) -> tuple[float, ...]:
    """Returns the floats at which ops may change behavior.

    Args:
        edges: the properties of the program.
        dtype: the floating-point dtype of the operand.
        values: `edge` for values near 0, including the values near literals of magnitude up to `NEAR`. `far edge` for
            the values near larger literals; the result is empty if the program has none.
    """
    limits = torch.finfo(dtype)
    if values == "far edge":
        return tuple(
            one
            for literal in edges.literals
            if NEAR < abs(literal) <= limits.max / 4
            for one in _beside(literal, dtype)
        )
    pool = [*_FLOATS, limits.smallest_normal, -limits.smallest_normal, limits.smallest_normal / 4, limits.eps]
    pool += [one for literal in edges.literals if abs(literal) <= NEAR for one in _beside(literal, dtype)]
    return (*pool, *(one for solved in _solved(edges.literals) for one in _beside(solved, dtype)[:3]))


def _solved(literals: tuple[float, ...]) -> list[float]:
    """Returns the operands for which adding or multiplying by a literal gives 0.5, 1.5, 2.5 or another literal.

    These are the quotients of 0.5, 1.5 and 2.5 by literals, and the quotients, products, sums and differences of two
    literals.
    """
    numbers = sorted({one for one in literals if one}, key=abs)[-COMBINED:]
    halves = {half / one for one in numbers for half in (0.5, 1.5, 2.5)}
    pairs = [(one, other) for one in numbers for other in numbers if one != other]
    both = {value for one, other in pairs for value in (other / one, other - one, other + one, other * one)}
    return sorted(one for one in halves | both if 0 < abs(one) <= NEAR)


def _beside(literal: float, dtype: torch.dtype) -> list[float]:
    """Returns a literal rounded to a dtype, both adjacent floats, its negation, twice its value, and literal + 0.5."""
    here = torch.tensor(literal, dtype=torch.float64).to(dtype)
    step = max(float(here.abs()) * torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal)
    return [float(here), float(here) - step, float(here) + step, -float(here), 2 * float(here), literal + 0.5]


def integer_edges(edges: Edges, dtype: torch.dtype) -> list[int]:
    """Returns the integers at which ops may change behavior, restricted to the range of a dtype, in ascending order."""
    limits = torch.iinfo(dtype)
    least = limits.min + (edges.integers == "divided")
    beside = [
        one
        for literal in {int(literal) for literal in edges.literals}
        for one in (literal - 1, literal, literal + 1, 2 * literal, -literal, -literal - 1)
    ]
    pool = {*_INTEGERS, least, least + 1, limits.max, limits.max - 1, *beside}
    return sorted(one for one in pool if least <= one <= limits.max and (one or edges.integers != "divided"))

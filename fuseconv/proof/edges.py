"""The values at which ops change what they do: beside every number that a program writes, halves, zeros, extremes.

A rule that leaves a bound out, or rounds halves another way, is right nearly everywhere; it is tried where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fuseconv.graph.nodes import facts_of, is_call

NEAR = 64.0
"""Literals up to it are tried together: what is computed of greater numbers may overflow, and is judged otherwise."""

SMALL = 1e-3
"""A literal up to it is added to what it keeps from 0, or bounds it."""

BEYOND_A_BYTE, LONGEST = 300, 2048
"""A size that no 8 bits count; and the longest that is tried."""

COMBINED = 6
"""Of so many literals the quotients, sums and differences are tried: where `x * 128` is a half, `x * 16` is 5."""

_FLOATS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5)
_INTEGERS = (0, 1, -1, 2, -2, 3, -3, 7, -8, 100)

_REDUCES = ("sum", "mean", "prod", "amax", "amin", "any", "all", "cumsum", "max", "min", "argmax", "argmin")
"""Ops that read of integer tensors their elements as numbers, beside those that are elementwise or move them."""

_DIVIDES = ("div", "remainder", "fmod", "floor_divide", "__rshift__", "__lshift__")


@dataclass(frozen=True)
class Edges:
    """What a program tells of the values to try it on.

    Attributes:
        literals: the numbers that it writes, without NaN and infinity.
        sums: whether it adds up elements: near the greatest number of a dtype a sum overflows in one order and not in
            another.
        integers: what its integers are: `indices` of something, to be small, and not negative but for `signed`;
            `divided` numbers, of which 0 and the least of their dtype are not tried, by which and of which a division
            fails; or `any`.
    """

    literals: tuple[float, ...] = ()
    sums: bool = True
    integers: Literal["indices", "signed", "divided", "any"] = "indices"

    def scales(self) -> list[float]:
        """Returns the magnitudes of rows that a small number of the program is as large as: it, and its root."""
        small = {abs(one) for one in self.literals if 0 < abs(one) <= SMALL}
        return sorted({*small, *(math.sqrt(one) for one in small)})

    def length(self) -> int:
        """Returns a size beyond the whole numbers that the program writes, and beyond what a byte counts."""
        whole = [int(abs(one)) for one in self.literals if one == int(one) and abs(one) <= LONGEST]
        return max([BEYOND_A_BYTE, *(one + 3 for one in whole)])


NOTHING = Edges()


def edges_of(graphs: Iterable[Graph], constants: Iterable[Any] = ()) -> Edges:
    """Returns what programs tell of the values to try them on.

    Args:
        graphs: the programs; `meta["val"]` of their nodes tells dtypes.
        constants: tensors that they read; one of one element is a number too.
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
    """Whether an op computes no element of several, and overflows only where its result does.

    This asks for PyTorch's tag, which hardswish has not: it multiplies by up to 6 before it divides by 6.
    """
    op: Any = node.target
    known = facts_of(node)
    return torch.Tag.pointwise in op.tags or bool(known.moved) or known.metadata_only


def _reads_elements(node: Node) -> bool:
    """Whether an op reads no integer tensor, or only its elements as numbers: not as indices, and not as counts."""
    op: Any = node.target
    if (_is_apart(node) and not facts_of(node).positions) or op._schema.name.removeprefix("aten::") in _REDUCES:
        return True
    return not any(_may_be_integer(operand) for operand in node.all_input_nodes)


def _may_be_integer(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value is None
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def near_edges(edges: Edges, dtype: torch.dtype, values: Literal["edge", "far edge"]) -> list[float]:
    """Returns the floats at which ops change what they do; of those far from 0 there may be none."""
    limits = torch.finfo(dtype)
    if values == "far edge":
        return [
            one
            for literal in edges.literals
            if NEAR < abs(literal) <= limits.max / 4
            for one in _beside(literal, dtype)
        ]
    pool = [*_FLOATS, limits.smallest_normal, -limits.smallest_normal, limits.smallest_normal / 4, limits.eps]
    pool += [one for literal in edges.literals if abs(literal) <= NEAR for one in _beside(literal, dtype)]
    return [*pool, *(one for solved in _solved(edges.literals) for one in _beside(solved, dtype)[:3])]


def _solved(literals: tuple[float, ...]) -> list[float]:
    """Returns where a product with, or a sum of, a number of the program is a half or another number of it."""
    numbers = sorted({one for one in literals if one}, key=abs)[-COMBINED:]
    halves = {half / one for one in numbers for half in (0.5, 1.5, 2.5)}
    pairs = [(one, other) for one in numbers for other in numbers if one != other]
    both = {value for one, other in pairs for value in (other / one, other - one, other + one, other * one)}
    return sorted(one for one in halves | both if 0 < abs(one) <= NEAR)


def _beside(literal: float, dtype: torch.dtype) -> list[float]:
    """Returns a number, the next ones of a dtype, and its multiples."""
    here = torch.tensor(literal, dtype=torch.float64).to(dtype)
    step = max(float(here.abs()) * torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal)
    return [float(here), float(here) - step, float(here) + step, -float(here), 2 * float(here), literal + 0.5]


def integer_edges(edges: Edges, dtype: torch.dtype) -> list[int]:
    """Returns the integers at which ops change what they do, as far as a dtype holds them."""
    limits = torch.iinfo(dtype)
    least = limits.min + (edges.integers == "divided")
    beside = [
        one
        for literal in {int(literal) for literal in edges.literals}
        for one in (literal - 1, literal, literal + 1, 2 * literal, -literal, -literal - 1)
    ]
    pool = {*_INTEGERS, least, least + 1, limits.max, limits.max - 1, *beside}
    return sorted(one for one in pool if least <= one <= limits.max and (one or edges.integers != "divided"))

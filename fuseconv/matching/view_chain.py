"""Chains of views: the shortest ops that arrange the elements of the base as a chain does, and what either costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from fuseconv.graph.axes import Axes, Factor, expression
from fuseconv.graph.nodes import facts_of, may_squeeze
from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.matching.graph import arguments, is_call, is_getitem, op_name

_COPIES = ("aten.contiguous.default", "aten.clone.default")
_DENSE = (None, 0, torch.contiguous_format, torch.preserve_format)
"""The memory formats of a copy that keeps the order of axes or makes it row-major. 0 is the default in a schema."""

_PERMUTES = frozenset({"permute", "transpose", "t", "mT", "mH", "adjoint", "numpy_T", "movedim", "moveaxis"})
_SELECTS = ("aten.select.int", "aten.unbind.int")
_VIEWS = ("aten.view.default", "aten.reshape.default")

Link: TypeAlias = tuple[Node, ...]
"""One op of a chain: a view or a copy, or an unbind with the getitem that takes one of its results."""

Op: TypeAlias = tuple[Any, ...]
"""An op to call on a value: the name without its namespace, and the arguments after the first."""


@dataclass(frozen=True, order=True)
class Cost:
    """The cost of a chain: copies, then views that split, merge or select axes, then permutations, then all ops.

    Last come permutations that are not written as `shortest` writes them, so that rules match one spelling.
    """

    copies: int
    shapes: int
    permutations: int
    ops: int
    spellings: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def link(node: Node, ranges: Mapping[Any, Any]) -> Link:
    """Returns the op of a chain whose result a node is. Empty if it is no view and no copy of one value."""
    if is_getitem(node):
        unbind: Any = node.args[0]
        return (unbind, node) if is_call(unbind) and op_name(unbind.target) == _SELECTS[1] else ()
    if not is_call(node) or not isinstance(node.meta.get("val"), torch.Tensor) or may_squeeze(node, ranges):
        return ()
    if op_name(node.target) in _COPIES:
        return (node,) if arguments(node)["memory_format"] in _DENSE else ()
    is_select = op_name(node.target) == _SELECTS[0]
    return (node,) if is_select or is_reshape((node,)) or _is_permutation((node,)) else ()


def base_of_link(one: Link) -> Node:
    """Returns the value of which a link is a view or a copy."""
    return one[0].all_input_nodes[0]


def is_copy(one: Link) -> bool:
    """Returns whether a link is an explicit copy."""
    return op_name(one[0].target) in _COPIES


def cost_of(chain: Sequence[Link], copies: int) -> Cost:
    """Returns the cost of a chain with this number of copies."""
    turns = [one[0] for one in chain if _is_permutation(one)]
    shapes = sum(not is_copy(one) for one in chain) - len(turns)
    return Cost(copies, shapes, len(turns), len(chain), sum(not _is_usual(turn) for turn in turns))


def only_transposes(chain: Sequence[Link]) -> bool:
    """Returns whether each permutation of a chain is a transpose of two axes."""
    return all(op_name(one[0].target) == "aten.transpose.int" for one in chain if _is_permutation(one))


def shortest(chain: Sequence[Link]) -> list[Op] | None:
    """Returns the ops that arrange the elements of the base as the chain does. None if no such ops are known."""
    base, end = base_of_link(chain[0]).meta["val"], chain[-1][-1].meta["val"]
    moves = [one for one in chain if not is_copy(one)]
    if all(is_reshape(one) for one in moves):
        if same_sizes(base.shape, end.shape):
            return []
        if op_name(moves[-1][0].target) in _VIEWS:
            return [("reshape.default", moves[-1][0].args[1])]
    if all(map(_is_permutation, moves)):
        return _permutation(_composed(moves, base.dim()))
    axes = _axes(base, moves)
    return None if axes is None else _ops(axes, moves)


def _composed(permutations: Sequence[Link], rank: int) -> list[int]:
    """Returns the permutation that several in a row compute. Unlike factors of axes, it also moves axes of size 1."""
    order = list(range(rank))
    for one in permutations:
        order = [order[axis] for axis in _order(one[0])]
    return order


def _axes(base: torch.Tensor, moves: Sequence[Link]) -> Axes | None:
    axes = Axes(base.shape)
    for one in moves:
        if _is_permutation(one):
            axes.permute(_order(one[0]))
        elif is_reshape(one):
            if not axes.view(one[0].meta["val"].shape):
                return None
        else:
            given = arguments(one[0])
            position: Any = one[1].args[1] if len(one) == 2 else given["index"]
            if not isinstance(position, int) or position < 0 or not axes.select(given["dim"], position):
                return None
    return axes


def _ops(axes: Axes, moves: Sequence[Link]) -> list[Op] | None:
    for factors in axes.base:
        axes.join(factors)
    left = [factor for axis in axes.base for factor in axis]
    if left == [factor for axis in axes.axes for factor in axis] and op_name(moves[-1][0].target) in _VIEWS:
        return [("reshape.default", moves[-1][0].args[1])]
    split = _splits(axes, moves[0][0])
    if split is None:
        return None
    selects: list[Op] = []
    for factor, position in axes.selected.items():
        selects.append(("select.int", left.index(factor), position))
        left.remove(factor)
    merges = _merges(axes, left, moves[-1][0])
    left, ends = axes.join(left)
    early = [*(("flatten.using_ints", *both) for both in ends), *_merges(axes, left, moves[-1][0])]
    return [*split, *selects, *(early if len(early) < len(merges) else merges)]


def _merges(axes: Axes, left: list[Factor], last: Node) -> list[Op]:
    """Returns the ops that permute the factors, which have an axis each, and then merge them."""
    ops = _permutation([left.index(factor) for axis in axes.axes for factor in axis])
    merges: list[Op] = []
    at = len(left)
    for axis in reversed(axes.axes):
        at -= len(axis)
        if len(axis) != 1:
            merges.append(("flatten.using_ints", at, at + len(axis) - 1) if axis else ("unsqueeze.default", at))
    if len(merges) > 1 and op_name(last.target) in _VIEWS:
        return [*ops, ("reshape.default", last.args[1])]
    return [*ops, *merges]


def _permutation(order: list[int]) -> list[Op]:
    """Returns the op that permutes axes. Empty if it leaves every axis in place."""
    moved = [at for at, axis in enumerate(order) if at != axis]
    if len(order) == 2 and moved:
        return [("t.default",)]
    if len(moved) == 2:
        return [("transpose.int", *([-2, -1] if moved[1] == moved[0] + 1 == len(order) - 1 else moved))]
    return [("permute.default", order)] if moved else []


def _is_usual(node: Node) -> bool:
    """Returns whether a permutation is written as `shortest` writes it. Axes may be counted from either end."""
    rank = node.meta["val"].dim()
    for op, *given in _permutation(_order(node)):
        args: Any = node.args[1:]
        same = [axis % rank for axis in (given[0] if op == "permute.default" else given)]
        axes = args[0] if op == "permute.default" and len(args) == 1 else args
        return op_name(node.target) == f"aten.{op}" and [axis % rank for axis in axes] == same
    return True


def _splits(axes: Axes, first: Node) -> list[Op] | None:
    """Returns the ops that give each factor of the base its own axis. None if a split has two dynamic sizes."""
    ops: list[Op] = []
    for at, factors in reversed([*enumerate(axes.base)]):
        sizes = [int(factor.size) if factor.size.is_Integer else -1 for factor in factors]
        if len(sizes) != 1:
            ops.append(("unflatten.int", at, sizes) if sizes else ("squeeze.dim", at))
        if sizes.count(-1) > 1 or len(ops) > 1:
            given = [expression(size) for size in first.meta["val"].shape] if op_name(first.target) in _VIEWS else []
            if given == [factor.size for axis in axes.base for factor in axis]:
                return [("reshape.default", first.args[1])]
        if sizes.count(-1) > 1:
            return None
    return ops


def is_reshape(one: Link) -> bool:
    """Returns whether a link splits, merges, adds or removes axes and keeps the order of the elements."""
    known = facts_of(one[0])
    return bool(known.moved) and known.order == "row-major"


def _is_permutation(one: Link) -> bool:
    return op_name(one[0].target).removeprefix("aten.").partition(".")[0] in _PERMUTES


def _order(node: Node) -> list[int]:
    """Returns the permutation that an op computes: axis i of the result is axis order[i] of the operand."""
    value = torch.empty(*range(2, 2 + node.meta["val"].dim()), device="meta")
    target: Any = node.target
    return [size - 2 for size in target(value, *node.args[1:], **node.kwargs).shape]

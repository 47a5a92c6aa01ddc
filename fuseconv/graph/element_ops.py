"""Derives formulas for the results of the ops that build masks, such as arange, comparisons and `where`.

A formula expresses the elements of a tensor in terms of their indices; see formula.py. For each supported op, this
module defines a rule: a function that derives the formula of the op's result from the formulas of its operands. A rule
raises `UnknownError` if it cannot express the result as a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.graph.formula import (
    AtLeastZero,
    Both,
    Choice,
    Either,
    Formula,
    Truth,
    UnknownError,
    axis,
    lifted,
    negated,
    number,
    substituted,
    truth_of,
    value_of,
)
from fuseconv.graph.nodes import facts_of


class Reader(Protocol):
    """The methods that a rule calls to get and check the formulas of operands. elements.py implements them."""

    def read(self, operand: Any) -> Formula:
        """Returns the formula of an operand: a node, a number or a symbolic size."""

    def held(self, formula: Formula, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of a node's elements after they are stored in a dtype; see `exact.held`."""

    def operand(self, operand: Any, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of an arithmetic operand, converted to the dtype of the computation."""

    def compared(self, operand: Any, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of an operand of a comparison, converted to the promoted dtype."""

    def bounds(self, value: sympy.Expr, node: Node) -> ValueRanges[Any]:
        """Returns bounds of a formula that hold at all indices of a node's tensor and for all declared sizes."""

    def decide(self, truth: Truth, node: Node) -> Truth:
        """Simplifies a condition: evaluates the parts with the same value at all indices and for all declared sizes."""


OpRule: TypeAlias = Callable[[Reader, Node, Mapping[str, Any]], Formula]


def shape_of(node: Node) -> list[sympy.Expr]:
    """Returns the shape of a node's tensor, with each size as a formula."""
    return [number(size) for size in node.meta["val"].shape]


def _arange(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    del node
    return lifted(
        reader.read(given.get("start") or 0), axis(1), lambda start, at: start + at * number(given.get("step") or 1)
    )


def _filled(value: Any) -> OpRule:
    return lambda reader, node, given: reader.read(_as(node, given["fill_value"] if value is None else value))


def _fill(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    if isinstance(given["value"], Node):
        raise UnknownError(f"{node.name}, which fills with a tensor")
    return reader.read(_as(node, given["value"]))


def _as(node: Node, value: Any) -> Any:
    return bool(value) if node.meta["val"].dtype == torch.bool else value


def _arithmetic(op: Callable[[sympy.Expr, sympy.Expr], sympy.Expr]) -> OpRule:
    def rule(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        dtype = node.meta["val"].dtype
        if dtype == torch.bool:
            raise UnknownError(f"{node.name}, which computes with bool tensors")
        left, right = (reader.operand(given[name], dtype, node) for name in ("self", "other"))
        scaled = lifted(right, number(given.get("alpha", 1)), lambda a, b: a * b)
        return lifted(left, reader.held(scaled, dtype, node), op)

    return rule


def _comparison(condition: Callable[[sympy.Expr], Truth]) -> OpRule:
    def rule(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        operands = [given["self"], given["other"]]
        dtype = torch.result_type(*(_kind(operand) for operand in operands))
        left, right = (reader.compared(operand, dtype, node) for operand in operands)
        # Equal numbers first: the difference of two infinities is NaN.
        difference = lifted(left, right, lambda a, b: sympy.Integer(0) if a == b else a - b)
        parts = [difference.yes, difference.no] if isinstance(difference, Choice) else [difference]
        # The difference of the two sides must be an integer formula or a number. Only the sign of a number matters.
        whole = [sympy.sign(part) if part.is_number else part for part in parts]
        if not all(part.is_integer for part in whole):
            raise UnknownError(f"{node.name}, which compares values that may not be integers")
        truths = [condition(part) for part in whole]
        if isinstance(difference, Choice):
            yes, no = truths
            return Either(Both(difference.condition, yes), Both(negated(difference.condition), no))
        return truths[0]

    return rule


def _kind(operand: Any) -> Any:
    """Returns a fake tensor or a number with the same effect on dtype promotion as the operand."""
    value = operand.meta["val"] if isinstance(operand, Node) else operand
    return 1 if isinstance(value, torch.SymInt) else value


def _connective(kind: type[Both | Either]) -> OpRule:
    return lambda reader, _, given: kind(truth_of(reader.read(given["self"])), truth_of(reader.read(given["other"])))


def _same(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    formula = reader.read(given["self"])
    return truth_of(formula) if node.meta["val"].dtype == torch.bool else formula


def _not(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    del node
    return negated(truth_of(reader.read(given["self"])))


def _moved(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns the formula of a reshape that only adds or removes axes of size 1."""
    source = given["self"]
    old, new = shape_of(source), shape_of(node)
    kept = [at for at, size in enumerate(new) if size != 1]
    if [size for size in old if size != 1] != [new[at] for at in kept]:
        raise UnknownError(f"{node.name}, which changes axes of a size other than 1")
    places = [at for at, size in enumerate(old) if size != 1]
    return _renamed(reader.read(source), len(old), places, len(new), kept)


def _permuted(order: Callable[[Mapping[str, Any], int], Sequence[int]]) -> OpRule:
    def rule(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        rank = node.meta["val"].dim()
        places = [place % rank for place in order(given, rank)]
        return _renamed(reader.read(given["self"]), rank, places, rank, range(rank))

    return rule


def _renamed(formula: Formula, old: int, places: Sequence[int], new: int, kept: Sequence[int]) -> Formula:
    """Returns a formula with renamed indices: the index along axis `places[i]` becomes the index along `kept[i]`.

    Args:
        formula: the formula in terms of the old axes.
        old: the number of old axes.
        places: old axes, counted from the first axis.
        new: the number of new axes.
        kept: the new axis for each axis in `places`, counted from the first axis.
    """
    return substituted(formula, {axis(old - at): axis(new - to) for at, to in zip(places, kept, strict=True)})


def _swap(given: Mapping[str, Any], rank: int) -> Sequence[int]:
    order = list(range(rank))
    one, other = given.get("dim0", 0), given.get("dim1", 1)
    order[one], order[other] = order[other], order[one]
    return order


def _sliced(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    rank = node.meta["val"].dim()
    start = number(given["start"] or 0)
    if start.is_negative is not False:
        raise UnknownError(f"{node.name}, whose start may be negative")
    index = axis(rank - given["dim"] % rank)
    return substituted(reader.read(given["self"]), {index: start + index * given["step"]})


def _gathered(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns the formula of x[i, j, ...] with one index tensor per axis.

    Substitutes the formulas of the index tensors for the indices in the formula of x.
    """
    source = given["self"]
    rank = source.meta["val"].dim()
    if len(given["indices"]) != rank or any(not isinstance(index, Node) for index in given["indices"]):
        raise UnknownError(f"{node.name}, which does not have one index tensor per axis")
    change = {}
    for at, index in enumerate(given["indices"]):
        formula = reader.read(index)
        whole = index.meta["val"].dtype in (torch.int64, torch.int32)  # a uint8 index is a mask
        if not whole or not isinstance(formula, sympy.Expr) or reader.bounds(formula, node).lower < 0:
            raise UnknownError(f"{node.name}, whose index may be negative")
        change[axis(rank - at)] = formula
    return substituted(reader.read(source), change)


def _chosen(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    if "mask" in given:
        condition, yes, no = given["mask"], given["value"], given["self"]
    else:
        condition, yes, no = given["condition"], given["self"], given["other"]
    truth, one, other = truth_of(reader.read(condition)), reader.read(yes), reader.read(no)
    if node.meta["val"].dtype == torch.bool:
        return Either(Both(truth, truth_of(one)), Both(negated(truth), truth_of(other)))
    return Choice(truth, _where(reader, truth, one, node), _where(reader, negated(truth), other, node))


def _where(reader: Reader, truth: Truth, formula: Formula, node: Node) -> sympy.Expr:
    """Returns the number that a formula gives wherever a condition holds.

    Raises:
        UnknownError: the formula is a selection by another condition.
    """
    value = value_of(formula)
    if not isinstance(value, Choice):
        return value
    known = reader.decide(truth, node)
    if reader.decide(value.condition, node) == known:
        return value.yes
    if reader.decide(negated(value.condition), node) == known:
        return value.no
    raise UnknownError(f"{node.name}, a selection between selections")


def _difference(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns the formula of diff along the last axis, x[i] - x[i - 1], where x[-1] is the argument `prepend`.

    Raises `UnknownError` if the element at i = 0 does not follow the same formula.
    """
    rank = node.meta["val"].dim()
    if given["n"] != 1 or given["dim"] % rank != rank - 1 or given["append"] is not None or given["prepend"] is None:
        raise UnknownError(f"{node.name}, which is not a first difference along the last axis with a prepended value")
    value, before = reader.read(given["self"]), reader.read(given["prepend"])
    if (
        not isinstance(value, sympy.Expr)
        or not isinstance(before, sympy.Expr)
        or given["prepend"].meta["val"].shape[-1] != 1
    ):
        raise UnknownError(f"{node.name}, which subtracts values that are selections or conditions")
    inner = sympy.expand(value - value.subs(axis(1), axis(1) - 1))
    if sympy.expand(value.subs(axis(1), 0) - before - inner.subs(axis(1), 0)) != 0:
        raise UnknownError(f"{node.name}, whose first element has a different formula")
    return inner


def _summed(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns the formula of a cumulative sum of a number that is the same at all indices."""
    rank = node.meta["val"].dim()
    value = value_of(reader.read(given["self"]))
    if isinstance(value, Choice):
        truth = reader.decide(value.condition, node)
        value = (value.yes if truth else value.no) if isinstance(truth, bool) else value
    if not isinstance(value, sympy.Expr) or not value.is_number:
        raise UnknownError(f"{node.name}, which sums values that are not constant")
    return value * (axis(rank - given["dim"] % rank) + 1)


def _joined(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns the formula of tensors that are concatenated, if all but one of them are empty, as without a cache."""
    filled = [one for one in given["tensors"] if 0 not in shape_of(one)]
    if len(filled) != 1:
        raise UnknownError(f"{node.name}, which concatenates several tensors")
    return reader.read(filled[0])


def _triangle(upper: bool) -> OpRule:
    def rule(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        beyond = axis(1) - axis(2) - number(given["diagonal"])
        inside = AtLeastZero(beyond) if upper else AtLeastZero(-beyond)
        formula = reader.read(given["self"])
        if node.meta["val"].dtype == torch.bool:
            return Both(inside, truth_of(formula))
        value = value_of(formula)
        if isinstance(value, Choice):
            raise UnknownError(f"{node.name}, which selects from a selection between numbers")
        return Choice(inside, value, sympy.Integer(0))

    return rule


def is_false_in_every_row(reader: Reader, node: Node) -> bool:
    """Returns whether every row (last axis) of a bool tensor provably contains a False element.

    Only the first, the last and, if the last two axes are equal in size, the diagonal element of each row are examined.

    Raises:
        UnknownError: the elements of the tensor have no formula.
    """
    truth, sizes = truth_of(reader.read(node)), shape_of(node)
    own = [axis(2)] if sizes[-1:] == sizes[-2:-1] else []
    places = (sympy.Integer(0), sizes[-1] - 1, *own)
    rows = (truth_of(substituted(truth, {axis(1): place})) for place in places)
    return any(reader.decide(row, node) is False for row in rows)


def _all(reader: Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Returns False for rows that each contain a False element, as the hidden keys of a query do if it sees a key."""
    source, dim = given["self"], given.get("dim")
    rank = source.meta["val"].dim()
    if not isinstance(dim, int) or not rank or dim % rank != rank - 1 or source.meta["val"].dtype != torch.bool:
        raise UnknownError(f"{node.name}, which does not combine the last axis of a bool tensor")
    if not is_false_in_every_row(reader, source):
        raise UnknownError(f"{node.name}, of rows that may all be true")
    return False


_RULES: Mapping[str, OpRule] = {
    "all": _all,
    "arange": _arange,
    **dict.fromkeys(("full", "new_full", "full_like"), _filled(None)),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _filled(1)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero"), _filled(0)),
    "fill": _fill,
    "scalar_tensor": lambda reader, node, given: reader.read(_as(node, given["s"])),
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "rsub": _arithmetic(lambda a, b: b - a),
    "mul": _arithmetic(lambda a, b: a * b),
    "ge": _comparison(AtLeastZero),
    "gt": _comparison(lambda e: AtLeastZero(e - 1)),
    "le": _comparison(lambda e: AtLeastZero(-e)),
    "lt": _comparison(lambda e: AtLeastZero(-e - 1)),
    "eq": _comparison(lambda e: Both(AtLeastZero(e), AtLeastZero(-e))),
    "ne": _comparison(lambda e: Either(AtLeastZero(e - 1), AtLeastZero(-e - 1))),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), _connective(Both)),
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), _connective(Either)),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    **dict.fromkeys(("transpose", "t"), _permuted(_swap)),
    "permute": _permuted(lambda given, _: given["dims"]),
    "slice": _sliced,
    "index": _gathered,
    **dict.fromkeys(("cat", "hstack"), _joined),
    **dict.fromkeys(("where", "masked_fill"), _chosen),
    "diff": _difference,
    "cumsum": _summed,
    "tril": _triangle(upper=False),
    "triu": _triangle(upper=True),
}
"""Maps the name of each op in the aten namespace to its rule."""


def rule_of(node: Node) -> OpRule | None:
    """Returns the rule of the op that a node calls, or None if the op has no rule."""
    known = facts_of(node)
    if known.moved and known.order != "other":
        return _same if known.order == "same" else _moved
    return _RULES.get(node.target._schema.name.removeprefix("aten::"))  # type: ignore[union-attr]  # a call

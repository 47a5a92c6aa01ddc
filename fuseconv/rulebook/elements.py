"""What each element of a computed tensor is, as a formula of its indices, for every size at once.

Masks are made of arange, comparisons, `and`, views and gathers. Followed from the mask back to those, an element
becomes a formula such as `d1 <= d2`, where `d1` counts along the last axis and `d2` along the one before. A comparison
is decided when its bounds, over all indices and all declared sizes, decide it; what is left is the mask's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from fuseconv.matching.nodes import arguments, is_call
from fuseconv.rulebook.formula import (
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

MAX_NODES = 400
"""The most nodes that a formula may come from."""


def elements(
    node: Node, ranges: Mapping[Any, Any], constant: Callable[[Any], Any], is_written: Callable[[Node], bool]
) -> Formula:
    """Returns the formula of a tensor's elements, decided as far as it can be.

    Args:
        node: what computes the tensor.
        ranges: symbolic size to the range declared for it.
        constant: node to the tensor it stands for, or None.
        is_written: whether a node's memory is written in place.

    Raises:
        UnknownError: there is none.
    """
    reader = _Reader(ranges, constant, is_written)
    formula = reader.read(node)
    if isinstance(formula, Choice):
        condition = reader.decide(formula.condition, node)
        return (
            Choice(condition, formula.yes, formula.no)
            if not isinstance(condition, bool)
            else (formula.yes if condition else formula.no)
        )
    return formula if isinstance(formula, sympy.Expr) else reader.decide(formula, node)


def leaves_some(
    node: Node, ranges: Mapping[Any, Any], constant: Callable[[Any], Any], is_written: Callable[[Node], bool]
) -> bool:
    """Whether no row of a bool tensor, along its last axis, is all true: its first element, its last or its own is not.

    Args:
        node: what computes the tensor.
        ranges: as `elements` takes them, and the others too.
        constant: as above.
        is_written: as above.

    Raises:
        UnknownError: the tensor's elements have no formula.
    """
    tensor = constant(node)
    if tensor is not None:
        return not bool(tensor.bool().all(-1).any())
    reader = _Reader(ranges, constant, is_written)
    truth, sizes = truth_of(reader.read(node)), shape_of(node)
    own = [axis(2)] if sizes[-1:] == sizes[-2:-1] else []
    places = (sympy.Integer(0), sizes[-1] - 1, *own)
    rows = (truth_of(substituted(truth, {axis(1): place})) for place in places)
    return any(reader.decide(row, node) is False for row in rows)


class _Reader:
    """Follows one tensor back to what its elements are."""

    def __init__(
        self, ranges: Mapping[Any, Any], constant: Callable[[Any], Any], is_written: Callable[[Node], bool]
    ) -> None:
        self.ranges = ranges
        self.constant = constant
        self.is_written = is_written
        self.known: dict[Node, Formula] = {}

    def read(self, operand: Any) -> Formula:
        """Returns the formula of an operand: a node, a number or a symbolic size."""
        if not isinstance(operand, Node):
            return operand if isinstance(operand, bool) else number(operand)
        if isinstance(operand.meta.get("val"), torch.SymInt | int):
            return number(operand.meta["val"])
        if operand not in self.known:
            if len(self.known) > MAX_NODES:
                raise UnknownError(operand.name)
            if self.is_written(operand):
                raise UnknownError(f"{operand.name}, which is written in place")
            tensor = self.constant(operand)
            self.known[operand] = _constant(tensor) if tensor is not None else self.call(operand)
        return self.known[operand]

    def call(self, node: Node) -> Formula:
        """Returns the formula of what an op computes."""
        if not is_call(node):
            raise UnknownError(node.name)
        name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]  # is_call has checked it
        rule = _RULES.get(name)
        if rule is None:
            raise UnknownError(f"{node.name}, which calls {node.target}")
        formula = rule(self, node, arguments(node))
        single = [at for at, size in enumerate(reversed(shape_of(node)), 1) if size == 1]
        return substituted(formula, {axis(at): sympy.Integer(0) for at in single})

    def bounds(self, value: sympy.Expr, node: Node) -> ValueRanges[Any]:
        """Returns the least and the greatest a formula may be, over all indices of a tensor and all sizes."""
        least, most = sympy.expand(value), sympy.expand(value)
        for at, size in enumerate(reversed(shape_of(node)), 1):
            index, last = axis(at), size - 1
            slope = least.coeff(index, 1)
            if not slope.is_number or sympy.expand(least - slope * index).has(index):
                raise UnknownError(f"{value} is not linear in its indices")
            least = sympy.expand(least.subs(index, 0 if slope >= 0 else last))
            most = sympy.expand(most.subs(index, last if slope >= 0 else 0))
        ranges = {
            symbol: self.ranges.get(symbol, ValueRanges(0, int_oo)) for symbol in least.free_symbols | most.free_symbols
        }
        return ValueRanges(bound_sympy(least, ranges).lower, bound_sympy(most, ranges).upper)

    def decide(self, truth: Truth, node: Node) -> Truth:
        """Returns a condition without what is always so, or never."""
        if isinstance(truth, AtLeastZero):
            bounds = self.bounds(truth.value, node)
            if bounds.lower >= 0:
                return True
            return False if bounds.upper < 0 else AtLeastZero(sympy.expand(truth.value))
        if isinstance(truth, Both | Either):
            left, right = self.decide(truth.left, node), self.decide(truth.right, node)
            absorbing = isinstance(truth, Either)
            if left is absorbing or right is absorbing:
                return absorbing
            if isinstance(left, bool):
                return right
            if isinstance(right, bool) or left == right:
                return left
            return type(truth)(left, right)
        return truth


def shape_of(node: Node) -> list[sympy.Expr]:
    """Returns the sizes of a tensor as formulas."""
    return [number(size) for size in node.meta["val"].shape]


def _constant(tensor: torch.Tensor) -> Formula:
    """The formula of a constant: one value, or two, of which one fills the lower triangle of the last two axes."""
    values = torch.unique(tensor)
    if values.numel() == 1:
        value = _python(values[0])
        return bool(value) if tensor.dtype == torch.bool else value
    if values.numel() == 2 and tensor.dim() >= 2:
        inside = torch.ones(tensor.shape[-2:], dtype=torch.bool, device=tensor.device).tril()
        for one, other in (values, values.flip(0)):
            if torch.equal(tensor == one, inside.expand(tensor.shape)):
                low = Choice(AtLeastZero(axis(2) - axis(1)), value_of(_python(one)), value_of(_python(other)))
                return truth_of(low) if tensor.dtype == torch.bool else low
    raise UnknownError("a constant of many values")


def _python(value: torch.Tensor) -> sympy.Expr:
    return number(float(value) if value.is_floating_point() else int(value))


_Rule: TypeAlias = Callable[[_Reader, Node, Mapping[str, Any]], Formula]


def _arange(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    del node
    return lifted(
        reader.read(given.get("start") or 0), axis(1), lambda start, at: start + at * number(given.get("step") or 1)
    )


def _filled(value: Any) -> _Rule:
    return lambda reader, node, given: reader.read(_as(node, given["fill_value"] if value is None else value))


def _as(node: Node, value: Any) -> Any:
    return bool(value) if node.meta["val"].dtype == torch.bool else value


def _arithmetic(op: Callable[[sympy.Expr, sympy.Expr], sympy.Expr]) -> _Rule:
    def rule(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        left, right = reader.read(given["self"]), reader.read(given["other"])
        if node.meta["val"].dtype == torch.bool:
            raise UnknownError(node.name)
        return lifted(left, lifted(right, number(given.get("alpha", 1)), lambda a, b: a * b), op)

    return rule


def _comparison(condition: Callable[[sympy.Expr], Truth]) -> _Rule:
    def rule(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        operands = [given["self"], given["other"]]
        difference = lifted(reader.read(operands[0]), reader.read(operands[1]), lambda a, b: a - b)
        parts = [difference.yes, difference.no] if isinstance(difference, Choice) else [difference]
        # What is compared is whole, or a number, of which only the sign matters.
        whole = [sympy.sign(part) if part.is_number else part for part in parts]
        if not all(part.is_integer for part in whole):
            raise UnknownError(f"{node.name}, which compares fractions")
        truths = [condition(part) for part in whole]
        if isinstance(difference, Choice):
            yes, no = truths
            return Either(Both(difference.condition, yes), Both(negated(difference.condition), no))
        return truths[0]

    return rule


def _connective(kind: type[Both | Either]) -> _Rule:
    return lambda reader, _, given: kind(truth_of(reader.read(given["self"])), truth_of(reader.read(given["other"])))


def _same(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    formula = reader.read(given["self"])
    return truth_of(formula) if node.meta["val"].dtype == torch.bool else formula


def _not(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    del node
    return negated(truth_of(reader.read(given["self"])))


def _moved(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """Views that only move axes, or add and remove axes of size 1."""
    source = given["self"]
    old, new = shape_of(source), shape_of(node)
    kept = [at for at, size in enumerate(new) if size != 1]
    if [size for size in old if size != 1] != [new[at] for at in kept]:
        raise UnknownError(node.name)
    places = [at for at, size in enumerate(old) if size != 1]
    return _renamed(reader.read(source), len(old), places, len(new), kept)


def _permuted(order: Callable[[Mapping[str, Any], int], Sequence[int]]) -> _Rule:
    def rule(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        rank = node.meta["val"].dim()
        places = [place % rank for place in order(given, rank)]
        return _renamed(reader.read(given["self"]), rank, places, rank, range(rank))

    return rule


def _renamed(formula: Formula, old: int, places: Sequence[int], new: int, kept: Sequence[int]) -> Formula:
    """The formula whose axis `kept[i]` is what `places[i]` was."""
    return substituted(formula, {axis(old - at): axis(new - to) for at, to in zip(places, kept, strict=True)})


def _swap(given: Mapping[str, Any], rank: int) -> Sequence[int]:
    order = list(range(rank))
    one, other = given.get("dim0", 0), given.get("dim1", 1)
    order[one], order[other] = order[other], order[one]
    return order


def _sliced(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    rank = node.meta["val"].dim()
    start = number(given["start"] or 0)
    if start.is_negative is not False:
        raise UnknownError(node.name)
    index = axis(rank - given["dim"] % rank)
    return substituted(reader.read(given["self"]), {index: start + index * given["step"]})


def _gathered(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """x[i, j, ...] with an index tensor for every axis: their formulas in the place of the axes."""
    source = given["self"]
    rank = source.meta["val"].dim()
    if len(given["indices"]) != rank or any(not isinstance(index, Node) for index in given["indices"]):
        raise UnknownError(node.name)
    change = {}
    for at, index in enumerate(given["indices"]):
        formula = reader.read(index)
        if not isinstance(formula, sympy.Expr) or reader.bounds(formula, node).lower < 0:
            raise UnknownError(f"{node.name}, by an index that may be negative")
        change[axis(rank - at)] = formula
    return substituted(reader.read(source), change)


def _chosen(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    if "mask" in given:
        condition, yes, no = given["mask"], given["value"], given["self"]
    else:
        condition, yes, no = given["condition"], given["self"], given["other"]
    truth, one, other = truth_of(reader.read(condition)), reader.read(yes), reader.read(no)
    if node.meta["val"].dtype == torch.bool:
        return Either(Both(truth, truth_of(one)), Both(negated(truth), truth_of(other)))
    numbers = [value_of(one), value_of(other)]
    if any(isinstance(number, Choice) for number in numbers):
        raise UnknownError("a choice of choices")
    return Choice(truth, *numbers)


def _difference(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """x[i] - x[i - 1] along the last axis, x[-1] being `prepend`; only where both forms agree."""
    rank = node.meta["val"].dim()
    if given["n"] != 1 or given["dim"] % rank != rank - 1 or given["append"] is not None or given["prepend"] is None:
        raise UnknownError(node.name)
    value, before = reader.read(given["self"]), reader.read(given["prepend"])
    if (
        not isinstance(value, sympy.Expr)
        or not isinstance(before, sympy.Expr)
        or given["prepend"].meta["val"].shape[-1] != 1
    ):
        raise UnknownError(node.name)
    inner = sympy.expand(value - value.subs(axis(1), axis(1) - 1))
    if sympy.expand(value.subs(axis(1), 0) - before - inner.subs(axis(1), 0)) != 0:
        raise UnknownError(node.name)
    return inner


def _summed(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
    """A running sum of what is the same everywhere."""
    rank = node.meta["val"].dim()
    value = value_of(reader.read(given["self"]))
    if isinstance(value, Choice):
        truth = reader.decide(value.condition, node)
        value = (value.yes if truth else value.no) if isinstance(truth, bool) else value
    if not isinstance(value, sympy.Expr) or not value.is_number:
        raise UnknownError(node.name)
    return value * (axis(rank - given["dim"] % rank) + 1)


def _triangle(upper: bool) -> _Rule:
    def rule(reader: _Reader, node: Node, given: Mapping[str, Any]) -> Formula:
        beyond = axis(1) - axis(2) - given["diagonal"]
        inside = AtLeastZero(beyond) if upper else AtLeastZero(-beyond)
        formula = reader.read(given["self"])
        if node.meta["val"].dtype == torch.bool:
            return Both(inside, truth_of(formula))
        value = value_of(formula)
        if isinstance(value, Choice):
            raise UnknownError(node.name)
        return Choice(inside, value, sympy.Integer(0))

    return rule


_SAME = "to _to_copy clone contiguous alias detach detach_ lift_fresh_copy expand expand_as type_as"
_MOVED = "view reshape unsqueeze squeeze flatten _unsafe_view"
_RULES: dict[str, _Rule] = {
    "arange": _arange,
    **dict.fromkeys(("full", "new_full", "full_like"), _filled(None)),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _filled(1)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like"), _filled(0)),
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
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(_MOVED.split(), _moved),
    **dict.fromkeys(("transpose", "t"), _permuted(_swap)),
    "permute": _permuted(lambda given, _: given["dims"]),
    "slice": _sliced,
    "index": _gathered,
    **dict.fromkeys(("where", "masked_fill"), _chosen),
    "diff": _difference,
    "cumsum": _summed,
    "tril": _triangle(upper=False),
    "triu": _triangle(upper=True),
}

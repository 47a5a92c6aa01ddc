"""Derives a formula for the elements of a tensor in terms of their indices. The formula is valid for all sizes.

Models build attention masks from arange, comparisons, logical `and`, views and gathers. Starting at the mask, this
module visits the ops that compute it and derives a formula. The formula of a causal mask is `d1 <= d2`: `d1` is the
element's index along the last axis, and `d2` its index along the second-to-last axis. A comparison that has the same
value at all indices and for all declared sizes is replaced by this value; all other comparisons remain in the formula.
A tensor has no formula if its dtype cannot represent an intermediate value exactly; see exact.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.graph.element_ops import is_false_in_every_row, rule_of, shape_of
from fuseconv.graph.exact import bounds, held
from fuseconv.graph.formula import (
    AtLeastZero,
    Both,
    Choice,
    Either,
    Formula,
    Truth,
    UnknownError,
    axis,
    number,
    substituted,
    truth_of,
    value_of,
)
from fuseconv.graph.nodes import arguments, is_call

MAX_NODES = 400
"""The maximum number of nodes that are visited to derive one formula."""


def elements(
    node: Node, ranges: Mapping[Any, Any], constant: Callable[[Any], Any], is_written: Callable[[Node], bool]
) -> Formula:
    """Returns the simplified formula of the elements of a tensor in terms of their indices.

    Args:
        node: the node that computes the tensor.
        ranges: maps each symbolic size (a sympy symbol) to its declared range.
        constant: a function that returns the value of a node if the node is a constant tensor, else None.
        is_written: a function that returns whether an op mutates the memory of a node's value.

    Raises:
        UnknownError: the elements have no formula, for example because they depend on an input of the program.
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
    """Returns whether every row (last axis) of a bool tensor provably contains a False element.

    If the tensor is not constant, only the first, the last and, if the last two axes are equal in size, the diagonal
    element of each row are examined. Returns False if none of these elements is provably False in every row.

    Args:
        node: the node that computes the tensor.
        ranges: as in `elements`.
        constant: as in `elements`.
        is_written: as in `elements`.

    Raises:
        UnknownError: the elements of the tensor have no formula.
    """
    tensor = constant(node)
    if tensor is not None:
        return not bool(tensor.bool().all(-1).any())
    return is_false_in_every_row(_Reader(ranges, constant, is_written), node)


class _Reader:
    """Derives the formula of one tensor recursively from its operands, and caches the formula of each node.

    `elements` describes the arguments.
    """

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
                raise UnknownError(f"more than {MAX_NODES} nodes from {operand.name} to the tensor")
            if self.is_written(operand):
                raise UnknownError(f"{operand.name}, which an op mutates")
            tensor = self.constant(operand)
            self.known[operand] = _constant(tensor) if tensor is not None else self.call(operand)
        return self.known[operand]

    def call(self, node: Node) -> Formula:
        """Returns the formula of the tensor that a node computes by calling an op."""
        if not is_call(node):
            raise UnknownError(f"{node.name}, whose elements are not known before the call")
        rule = rule_of(node)
        if rule is None:
            raise UnknownError(f"{node.name}, which calls {node.target}, an op without a formula")
        formula = self.held(rule(self, node, arguments(node)), node.meta["val"].dtype, node)
        single = [at for at, size in enumerate(reversed(shape_of(node)), 1) if size == 1]
        return substituted(formula, {axis(at): sympy.Integer(0) for at in single})

    def bounds(self, value: sympy.Expr, node: Node) -> ValueRanges[Any]:
        """Returns bounds of a formula that hold at all indices of a node's tensor and for all declared sizes."""
        return bounds(value, shape_of(node), self.ranges)

    def held(self, formula: Formula, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of a node's elements after they are stored in a dtype; see `exact.held`."""
        return held(formula, dtype, lambda value: self.bounds(value, node))

    def operand(self, operand: Any, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of an arithmetic operand. A tensor is converted to the dtype of the computation."""
        formula = self.read(operand)
        # Kernels for 16-bit dtypes compute in float32, and round a Python number to float32.
        narrow = dtype.is_floating_point and dtype.itemsize < 4 and not isinstance(operand, Node)
        return self.held(formula, torch.float32 if narrow else dtype, node)

    def compared(self, operand: Any, dtype: torch.dtype, node: Node) -> Formula:
        """Returns the formula of an operand of a comparison. A tensor is converted to the promoted dtype."""
        formula = self.read(operand)
        cast = self.held(formula, dtype, node)
        if not isinstance(operand, Node) and cast != formula:
            raise UnknownError(
                f"the comparison {node.name} with the number {formula}, which {dtype} cannot represent exactly"
            )
        return cast

    def decide(self, truth: Truth, node: Node) -> Truth:
        """Simplifies a condition: evaluates the parts with the same value at all indices and for all declared sizes."""
        if isinstance(truth, AtLeastZero):
            bounds = self.bounds(truth.value, node)
            if bounds.lower >= 0:
                return True
            return False if bounds.upper < 0 else AtLeastZero(sympy.expand(truth.value).primitive()[1])
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


def _constant(tensor: torch.Tensor) -> Formula:
    """Returns the formula of a constant tensor that contains one value, or one value in each triangle.

    The triangles are those of the matrices in the last two axes. The diagonal belongs to the lower triangle.

    Raises:
        UnknownError: the tensor contains more than two values, or two values in another arrangement.
    """
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
    raise UnknownError("a constant with more than two values")


def _python(value: torch.Tensor) -> sympy.Expr:
    """Converts a tensor with one element to a formula that is a constant number. A bool becomes 0 or 1."""
    return number(float(value) if value.is_floating_point() else int(value))

"""Treats nested multiplications, in any order, as one product of tensors and a scalar.

`x * 0.5 * (1 + e)`, `(x * (1 + e)) / 2` and `0.5 * (x * (1 + e))` are all the product of `x`, `1 + e` and 0.5. The
pattern `product(x, s, 0.5)` matches each of these expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fuseconv.matching.graph import is_call


class Product:
    """The type of `PRODUCT`, which takes the place of an op in a pattern line `y = product(...)`."""

    def __str__(self) -> str:
        return "product"


PRODUCT = Product()

_MUL = torch.ops.aten.mul.Tensor
_DIV = torch.ops.aten.div.Tensor
_NEG = torch.ops.aten.neg.default
MULTIPLIES = (_MUL, _DIV, _NEG)
"""The ops that may form a product."""

DEPTH = 32
"""The maximum depth of nested multiplications. A longer chain is treated as several products."""


class Cut(NamedTuple):
    """One decomposition of a node into a product: tensor factors, a scalar factor, and the multiplication nodes."""

    factors: tuple[Node, ...]
    number: float
    nodes: tuple[Node, ...]


def multiplies(node: Node) -> bool:
    """Returns whether a node multiplies tensors, multiplies or divides a tensor by a real number, or negates one."""
    if not is_call(node) or node.target not in MULTIPLIES or not isinstance(node.args[0], Node):
        return False  # a tensor argument may be a number, as in mul(2, x)
    if node.target is _NEG:
        return True
    other = node.args[1]  # a bool and a complex number are neither tensors nor real numbers
    divides = node.target is _DIV
    return (isinstance(other, Node) and not divides) or (_is_number(other) and not (divides and other == 0))


def cuts(node: Node, count: int, visit: Callable[[Node], None] = lambda _: None) -> Iterator[Cut]:
    """Yields every decomposition of a node into `count` tensor factors and a scalar factor, the most nested first.

    A factor is not decomposed further if it has other users, or if its dtype differs from the dtype of the product,
    because the conversion may have rounded its value. Every tensor is also the product of itself and 1.

    Args:
        node: the node to decompose.
        count: the required number of tensor factors.
        visit: called each time a node is visited. It may raise an exception to stop, because there may be many
            decompositions.
    """
    for cut in _cuts(node, count, DEPTH, visit):
        if len(cut.factors) == count:
            yield cut


def _cuts(node: Node, count: int, depth: int, visit: Callable[[Node], None]) -> Iterator[Cut]:
    """Yields the decompositions of a node into at most `count` tensor factors, following at most `depth` nested ops."""
    visit(node)
    if depth and multiplies(node):
        if node.target is _NEG:
            yield from _scaled(node, -1.0, count, depth, visit)
        elif _is_number(node.args[1]):
            number: Any = node.args[1]
            yield from _scaled(node, 1 / number if node.target is _DIV else number, count, depth, visit)
        elif count > 1:
            left, right = node.args
            for one in _factor(left, node, count - 1, depth, visit):
                for other in _factor(right, node, count - len(one.factors), depth, visit):
                    yield Cut(one.factors + other.factors, one.number * other.number, (*one.nodes, *other.nodes, node))
    yield Cut((node,), 1.0, ())


def _scaled(node: Node, number: float, count: int, depth: int, visit: Callable[[Node], None]) -> Iterator[Cut]:
    for cut in _factor(node.args[0], node, count, depth, visit):
        yield Cut(cut.factors, cut.number * number, (*cut.nodes, node))


def _factor(operand: Any, user: Node, count: int, depth: int, visit: Callable[[Node], None]) -> Iterator[Cut]:
    """Yields the decompositions of an operand of the multiplication `user`: only the operand if it has other users."""
    twice = len(user.args) == 2 and user.args[0] is user.args[1]
    if len(operand.users) == 1 and not twice and _dtype(operand) == _dtype(user):
        yield from _cuts(operand, count, depth - 1, visit)
    else:
        visit(operand)
        yield Cut((operand,), 1.0, ())


def _dtype(node: Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

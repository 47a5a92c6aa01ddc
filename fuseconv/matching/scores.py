"""Reads the scores of attention backwards, from the softmax to the product of queries and keys.

Models scale, cap, bias and mask scores in any number of steps and in any order. The result of reading is
the product and the list of steps between the product and the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Node

from fuseconv.matching.graph import arguments, is_call, op_name
from fuseconv.rulebook.refused import Refused, text_of

Kind = Literal["scale", "factor", "divisor", "term", "fill", "view", "turn", "cast"]

DEPTH = 32
"""The maximum number of steps between the product and the softmax."""


@dataclass(frozen=True)
class Step:
    """One op between the product and the softmax.

    Attributes:
        kind: `scale` multiplies by a number, `factor` multiplies by a tensor, `divisor` divides by a tensor, `term`
            adds a tensor, `fill` masks scores, `view` changes the leading axes, `turn` transposes the last two axes,
            and `cast` changes the dtype.
        node: the node that calls the op.
        value: the number of a `scale`; the tensor of a `factor`, `divisor` or `term`; the mask of a `fill`.
        number: the multiplier of a `term`; the fill value of a `fill`.
    """

    kind: Kind
    node: Node
    value: Any = None
    number: float = 1.0


@dataclass(frozen=True)
class Scores:
    """How attention scores are computed: a product and the steps that are applied to it.

    Attributes:
        product: the product of queries and keys.
        left: the first operand of the product: the queries, of shape [..., queries, width], or the keys if `turned`.
        right: the second operand, of shape [..., width, keys], or [..., keys, width] if the product is a linear.
        steps: the steps applied to the product, in order.
        nodes: all ops that compute the scores. The product comes first.
    """

    product: Node
    left: Node
    right: Node
    steps: tuple[Step, ...] = ()
    nodes: tuple[Node, ...] = ()

    def then(self, step: Step) -> Scores:
        """Returns a copy of these scores with one more step at the end."""
        nodes = self.nodes if step.node in self.nodes else (*self.nodes, step.node)
        return Scores(self.product, self.left, self.right, (*self.steps, step), nodes)

    def without_last(self) -> Scores:
        """Returns a copy of these scores without the last step."""
        return Scores(self.product, self.left, self.right, self.steps[:-1], self.nodes)

    @property
    def turned(self) -> bool:
        """Whether the steps transpose the scores, so that the first operand of the product is the keys."""
        return len(self.of("turn")) % 2 == 1

    @property
    def is_linear(self) -> bool:
        """Whether the product is a call of aten.linear, which transposes `right`."""
        return op_name(self.product.target) == "aten.linear.default"

    def of(self, kind: Kind) -> list[Step]:
        """Returns the steps of the given kind, in order."""
        return [step for step in self.steps if step.kind == kind]


def read_scores(node: Node) -> Scores:
    """Returns how the operand of a softmax is computed from a product of two tensors.

    Raises:
        Refused: the operand is not computed from such a product by known steps. The attribute `at` of the exception is
            the node whose op is not a known step.
    """
    return _Reader().read(node, DEPTH)


@dataclass
class _Reader:
    failed: dict[Node, Refused] = field(default_factory=dict)

    def read(self, node: Any, depth: int) -> Scores:
        """Returns how a value is computed from a product of two tensors, through at most `depth` ops.

        If both operands of an op are computed from a product, the first operand is used.
        """
        if not is_call(node) or not depth or not _is_floating(node):
            raise Refused("a product of queries and keys", text_of(node), at=node if isinstance(node, Node) else None)
        if node in self.failed:
            raise self.failed[node]
        given = arguments(node)
        nearest: Refused | None = None
        for operand, *steps in _ways(node, given):
            if not _is_tensor(operand) or not all(_is_operand(step.value) for step in steps):
                continue
            try:
                scores = self.read(operand, depth - 1)
            except Refused as problem:
                nearest = nearest or problem
                continue
            for step in steps:
                scores = scores.then(step)
            return scores
        if nearest is None:
            product = _product(node, given)
            if product is not None:
                return product
            nearest = Refused("an op that scales, biases, masks or views the scores", op_name(node.target), at=node)
        self.failed[node] = nearest
        raise nearest


def _product(node: Node, given: Mapping[str, Any]) -> Scores | None:
    name = op_name(node.target)
    if name in PRODUCTS or (name == "aten.linear.default" and given["bias"] is None):
        left, right = (node.all_input_nodes * 2)[:2]
        return Scores(node, left, right, nodes=(node,))
    if name == "aten.baddbmm.default":
        scores = Scores(node, given["batch1"], given["batch2"], nodes=(node,))
        scores = scores.then(Step("scale", node, given["alpha"]))
        beta = given["beta"]
        return scores.then(Step("term", node, given["self"], beta)) if beta != 0 else scores
    return None


def _ways(node: Node, given: Mapping[str, Any]) -> Iterator[tuple[Any, *tuple[Step, ...]]]:
    """Yields each operand of an op that may be the scores, followed by the steps that the op applies to it."""
    name = op_name(node.target)
    one, other = given.get("self"), given.get("other")
    if name == "aten.mul.Tensor":
        for scores, factor in ((one, other), (other, one)):
            yield scores, Step("scale" if _is_number(factor) else "factor", node, factor)
    elif name == "aten.div.Tensor":
        yield one, Step("scale", node, 1 / other) if _is_number(other) and other else Step("divisor", node, other)
    elif name == "aten.neg.default":
        yield one, Step("scale", node, -1.0)
    elif name in ("aten.add.Tensor", "aten.sub.Tensor"):
        sign = -1 if name == "aten.sub.Tensor" else 1
        alpha = given["alpha"] * sign
        yield one, Step("term", node, other, alpha)
        scaled = () if alpha == 1 else (Step("scale", node, alpha),)
        yield other, *scaled, Step("term", node, one)
    elif name == "aten.masked_fill.Scalar":
        yield one, Step("fill", node, given["mask"], given["value"])
    elif name == "aten.transpose.int" and _is_of_last(given["dim0"], given["dim1"], node.meta["val"].dim()):
        yield one, Step("turn", node)
    elif name in VIEWS:
        yield one, Step("view", node)
    elif name == "aten.to.dtype":
        yield one, Step("cast", node)


PRODUCTS = ("aten.matmul.default", "aten.bmm.default", "aten.mm.default")
VIEWS = (
    "aten.view.default",
    "aten.reshape.default",
    "aten.unflatten.int",
    "aten.flatten.using_ints",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
)


def _is_of_last(one: int, other: int, rank: int) -> bool:
    return {one % rank, other % rank} == {rank - 2, rank - 1}


def _is_operand(value: object) -> bool:
    """Returns whether a value can be the operand of a step: a tensor, a number or None, but not a symbolic size."""
    return value is None or _is_number(value) or _is_tensor(value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_floating(node: Node) -> bool:
    fake = node.meta.get("val")
    return isinstance(fake, torch.Tensor) and fake.is_floating_point()

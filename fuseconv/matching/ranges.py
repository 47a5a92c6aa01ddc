"""Computes bounds of a tensor's elements, to decide whether a term added to attention scores can mask a key or a row.

Bounds are propagated from the constants and literals from which a tensor is computed. The outputs of layers are assumed
to be within `ORDINARY`. Inputs, and ops that may produce infinities, are unbounded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from fuseconv.graph.nodes import facts_of
from fuseconv.matching.graph import Workspace, arguments, is_call, nodes_in

Range: TypeAlias = tuple[float, float]
"""A lower and an upper bound of the elements."""

ANY: Range = (-math.inf, math.inf)
ORDINARY: Range = (-1e3, 1e3)
WHOLE: Range = (-1e6, 1e6)
"""The range assumed for integers: positions, ids and counts."""

_MOST = sys.float_info.max

MAX_NODES = 400
"""The maximum number of nodes to follow. A value that is computed from more nodes counts as unbounded."""


def range_of(node: Any, workspace: Workspace) -> Range:
    """Returns the range of a tensor's elements or of a number, assuming that no intermediate value overflows."""
    return _Reader(workspace).read(node)


def joined(*ranges: Range) -> Range:
    """Returns the smallest range that contains all of the given ranges."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def summed(one: Range, other: Range) -> Range:
    """Returns the range of the sum of two values with the given ranges."""
    return _finite(one[0] + other[0], one[0], other[0]), _finite(one[1] + other[1], one[1], other[1])


def multiplied(one: Range, other: Range) -> Range:
    """Returns the range of the product of two values with the given ranges. 0 times an unbounded value counts as 0."""
    ends = [0.0 if 0 in (a, b) else _finite(a * b, a, b) for a in one for b in other]
    return min(ends), max(ends)


def _finite(result: float, *operands: float) -> float:
    """Returns the result. If finite operands gave an infinite result, returns the largest float of the same sign."""
    if math.isinf(result) and not any(map(math.isinf, operands)):
        return math.copysign(_MOST, result)
    return result


class _Reader:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.known: dict[Node, Range] = {}

    def read(self, operand: Any) -> Range:
        if isinstance(operand, bool | int | float):
            return float(operand), float(operand)
        if not isinstance(operand, Node) or len(self.known) > MAX_NODES:
            return ANY
        if operand not in self.known:
            self.known[operand] = self._of(operand)
        return self.known[operand]

    def _of(self, node: Node) -> Range:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return WHOLE  # a size
        if fake.dtype == torch.bool:
            return 0.0, 1.0
        tensor = self.workspace.constant(node)
        if tensor is not None:
            tensor = tensor.detach()  # a parameter
            return (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
        if self.workspace.aliases.is_written(node):
            return ANY
        found = ANY
        if is_call(node):
            name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]  # is_call has checked it
            given = arguments(node)
            if moved := facts_of(node).moved:
                found = joined(*map(self.read, nodes_in(given[moved])))
            elif name in _RULES:
                found = _RULES[name](self.read, given)
        if found == ANY and not fake.is_floating_point():
            found = WHOLE
        return (-math.inf, math.inf) if any(map(math.isnan, found)) else found


_Rule: TypeAlias = Callable[[Callable[[Any], Range], Mapping[str, Any]], Range]


def _times(number: float, one: Range) -> Range:
    return multiplied((number, number), one)


def _divided(read: Callable[[Any], Range], given: Mapping[str, Any]) -> Range:
    other = given["other"]
    return _times(1 / other, read(given["self"])) if isinstance(other, int | float) and other else ANY


def _clamped(read: Callable[[Any], Range], given: Mapping[str, Any]) -> Range:
    low, high = read(given["self"])
    least, most = given.get("min"), given.get("max")
    low = max(low, least) if isinstance(least, int | float) else low
    return low, max(low, min(high, most)) if isinstance(most, int | float) else max(low, high)


def _chosen(read: Callable[[Any], Range], given: Mapping[str, Any]) -> Range:
    one = given["value"] if "mask" in given else given["other"]
    return joined(read(given["self"]), read(one))


def _magnitude(read: Callable[[Any], Range], given: Mapping[str, Any]) -> Range:
    low, high = read(given["self"])
    return (low if low > 0 else -high if high < 0 else 0.0), max(abs(low), abs(high))


def _always(low: float, high: float) -> _Rule:
    return lambda _, __: (low, high)


_LAYERS = "linear addmm mm bmm matmul einsum tensordot layer_norm rms_norm group_norm gelu silu conv1d conv2d conv3d"
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_LAYERS.split(), _always(*ORDINARY)),
    **dict.fromkeys(("tril", "triu"), lambda read, given: joined(read(given["self"]), (0.0, 0.0))),
    "embedding": lambda read, given: read(given["weight"]),
    **dict.fromkeys(("full", "new_full", "full_like"), lambda read, given: read(given["fill_value"])),
    "fill": lambda read, given: read(given["value"]),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero"), _always(0.0, 0.0)),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _always(1.0, 1.0)),
    "scalar_tensor": lambda read, given: read(given["s"]),
    "add": lambda read, given: summed(read(given["self"]), _times(given["alpha"], read(given["other"]))),
    "sub": lambda read, given: summed(read(given["self"]), _times(-given["alpha"], read(given["other"]))),
    "rsub": lambda read, given: summed(read(given["other"]), _times(-given["alpha"], read(given["self"]))),
    "mul": lambda read, given: multiplied(read(given["self"]), read(given["other"])),
    "div": _divided,
    "neg": lambda read, given: _times(-1.0, read(given["self"])),
    "abs": _magnitude,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamped),
    **dict.fromkeys(("where", "masked_fill"), _chosen),
    **dict.fromkeys(("relu", "exp", "square"), _always(0.0, math.inf)),
    **dict.fromkeys(("sigmoid", "softmax"), _always(0.0, 1.0)),
    "tanh": _always(-1.0, 1.0),
}

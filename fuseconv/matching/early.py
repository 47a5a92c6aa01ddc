"""Moves activations before the views of a product or norm, so that the kernel of that op computes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.fx import Node

from fuseconv.graph.typical_sizes import typical
from fuseconv.matching.graph import Workspace, op_name
from fuseconv.matching.match import Candidate, Match, check_apart, settle
from fuseconv.matching.search import Index
from fuseconv.matching.view_chain import base_of_link, link
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import parse_line

_NAMES = "relu gelu silu sigmoid tanh hardswish hardsigmoid hardtanh leaky_relu elu mish"
_ACTIVATIONS = frozenset(f"aten.{name}.default" for name in _NAMES.split())
_PRODUCERS = frozenset(
    {
        *("aten.linear.default", "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"),
        *("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"),
        *("aten.layer_norm.default", "aten.group_norm.default"),
    }
)
"""The ops whose kernels compute an activation of their result."""


def activations(index: Index, rule: Rule) -> Iterator[Match]:
    """Yields a match for each activation of a view of the result of a linear, a convolution or a norm."""
    calls = [node for op, nodes in index.calls.items() if str(op) in _ACTIVATIONS for node in nodes]
    for act in calls:
        views = _views(act, index.workspace)
        if not views:
            continue
        captures: dict[str, Any] = {"x": base_of_link((views[0],))}
        lines, before = [], "x"
        for number, node in enumerate((act, *views)):
            result = "y" if node is views[-1] else f"h{number}"
            lines.append(f"{result} = {op_name(node.target)}({', '.join([before, *_given(node, captures)])})")
            before = result
        nodes, results = frozenset((act, *views)), {"y": act}
        try:
            check_apart(index, nodes, captures, results)
            yield settle(index, Candidate(rule, nodes, captures, results), list(map(parse_line, lines)))
        except Refused:
            continue


def _views(act: Node, workspace: Workspace) -> list[Node]:
    """Returns the views, and copies of views, between an op of `_PRODUCERS` and its activation, in order.

    Empty if the activation reads no such views.
    """
    views: list[Node] = []
    node = act.all_input_nodes[0]
    while len(node.users) == 1 and (_is_slice(node) or len(link(node, workspace.ranges)) == 1):
        views.append(node)
        node = node.all_input_nodes[0]
    return views[::-1] if op_name(node.target) in _PRODUCERS and len(node.users) == 1 else []


def _is_slice(node: Node) -> bool:
    """Returns whether a node is a slice that keeps at least half of the elements."""
    if op_name(node.target) != "aten.slice.Tensor":
        return False
    return 2 * _count(node) >= _count(node.all_input_nodes[0])


def _count(node: Node) -> int:
    """Returns the number of elements of a tensor in a typical call."""
    return math.prod(map(typical, node.meta["val"].shape))


def _given(node: Node, captures: dict[str, Any]) -> Iterator[str]:
    """Yields the text of the arguments after the first. Those that are no literals become captures."""
    for name, value in [*((None, value) for value in node.args[1:]), *node.kwargs.items()]:
        text = repr(value)
        if not isinstance(value, bool | int | str | None):
            captures[text := f"s{len(captures)}"] = value
        yield f"{name}={text}" if name else text

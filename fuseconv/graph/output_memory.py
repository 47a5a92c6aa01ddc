"""Finds which outputs of a graph may share memory with inputs, weights or other outputs, and copies outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from fuseconv.graph.aliases import viewed


def owners_of_outputs(graph: Graph) -> list[frozenset[Node]]:
    """Returns for each output the nodes that may own its memory: the node itself, or the bases of which it is a view.

    An output that is no tensor has no owner.
    """
    known: dict[Node, frozenset[Node]] = {}
    return [_owners(value, known) if _is_tensor(value) else frozenset() for value in returned(graph)]


def returned(graph: Graph) -> list[Any]:
    """Returns the values that a graph returns: nodes, and constants such as None."""
    results: Any = graph.output_node().args[0]
    return list(results)


def clone_outputs(graph: Graph, chosen: Sequence[bool]) -> None:
    """Changes a graph so that it returns a copy of each output for which `chosen` is true."""
    output = graph.output_node()
    results = []
    for value, is_chosen in zip(returned(graph), chosen, strict=True):
        result = value
        if is_chosen:
            with graph.inserting_before(output):
                result = graph.call_function(torch.ops.aten.clone.default, (value,))
            result.meta = {key: value.meta[key] for key in ("val", "stack_trace") if key in value.meta}
        results.append(result)
    output.args = (tuple(results),)


def is_given(owner: Node) -> bool:
    """Returns whether a node is an input or a weight, whose memory is not made by the call."""
    return owner.op in ("placeholder", "get_attr")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _owners(node: Node, known: dict[Node, frozenset[Node]]) -> frozenset[Node]:
    """Returns the owners of a node's memory. `known` is a cache, to which the result is added."""
    if node not in known:
        bases = viewed(node)
        found = (_owners(base, known) for base in bases)
        known[node] = frozenset().union(*found) if bases else frozenset({node})
    return known[node]

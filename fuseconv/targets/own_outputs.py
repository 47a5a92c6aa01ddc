"""Gives each output its own memory, so that no output is an alias of another output, an input or a weight.

A model may return the same value twice, or an input, a parameter, or a view of these. A rule that removes a copy may
also turn two outputs into one value. A caller who mutates such an output would change another output, or the weights of
all later calls; and in ONNX, one value cannot have two names. Therefore such outputs are cloned before a target is
written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fuseconv.graph.aliases import viewed
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph


def own_outputs(program: Program) -> Program:
    """Returns a program that clones every output that may share memory with an input, a weight or an earlier output.

    The given program is not changed. If no output needs a copy, the given program is returned.
    """
    shared = _shared(_returned(program.exported.graph))
    if not any(shared):
        return program
    return replace(program, exported=_copied(program.exported, shared))


def _returned(graph: Graph) -> list[Node]:
    results: Any = graph.output_node().args[0]
    return list(results)


def _shared(returned: list[Node]) -> list[bool]:
    """Returns for each output whether it may share memory with an input, a weight, or an earlier output."""
    roots: dict[Node, frozenset[Node]] = {}
    taken: set[Node] = set()
    found = []
    for node in returned:
        own = _roots(node, roots)
        found.append(any(root.op in ("placeholder", "get_attr") for root in own) or bool(own & taken))
        taken |= own
    return found


def _roots(node: Node, known: dict[Node, frozenset[Node]]) -> frozenset[Node]:
    """Returns the nodes that own the memory of a node's value: the node itself, or for a view the bases of the view.

    Args:
        node: the node whose memory is examined.
        known: a cache of results by node, to which the result for this node is added.
    """
    if node not in known:
        near = viewed(node)
        owners = (_roots(operand, known) for operand in near)
        known[node] = frozenset().union(*owners) if near else frozenset({node})
    return known[node]


def _copied(exported: ExportedProgram, shared: list[bool]) -> ExportedProgram:
    graph = copied(exported.graph)
    output, returned = graph.output_node(), _returned(graph)
    results = []
    for node, is_shared in zip(returned, shared, strict=True):
        result = node
        if is_shared:
            with graph.inserting_before(output):
                result = graph.call_function(torch.ops.aten.clone.default, (node,))
            result.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        results.append(result)
    output.args = (tuple(results),)
    return with_graph(exported, graph)

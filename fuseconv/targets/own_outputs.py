"""Outputs in memory of their own: no two of them share it, and none is an input's or a weight's.

A model may return one value twice, its own input, a parameter, or a view of any of these; and a rule that drops a copy
makes two outputs one. A caller who writes to such an output changes another, or the weights for every later call; ONNX
has one name for each output, and cannot name one value twice. So each such output is copied where a target begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fuseconv.graph.aliases import viewed
from fuseconv.program.captured import Program
from fuseconv.targets.graph_copy import copied, with_graph


def own_outputs(program: Program) -> Program:
    """Returns the program with a copy for each output that shares memory with an input, a weight or another output.

    The given program is not changed; it is returned itself where no output needs a copy.
    """
    returned = _returned(program.exported.graph)
    if not any(_shared(returned)):
        return program
    return replace(program, exported=_copied(program.exported))


def _returned(graph: Graph) -> list[Node]:
    results: Any = graph.output_node().args[0]
    return list(results)


def _shared(returned: list[Node]) -> list[bool]:
    """Tells of each output whether its memory may be an input's, a weight's, or that of an output before it."""
    roots = {node: _roots(node) for node in returned}
    taken: set[Node] = set()
    found = []
    for node in returned:
        found.append(any(root.op in ("placeholder", "get_attr") for root in roots[node]) or bool(roots[node] & taken))
        taken |= roots[node]
    return found


def _roots(node: Node) -> frozenset[Node]:
    """Returns the nodes that made the memory which a value may lie in: itself, or what it is a view of."""
    near = viewed(node)
    return frozenset({node}) if not near else frozenset().union(*map(_roots, near))


def _copied(exported: ExportedProgram) -> ExportedProgram:
    graph = copied(exported.graph)
    output, returned = graph.output_node(), _returned(graph)
    results = []
    for node, is_shared in zip(returned, _shared(returned), strict=True):
        result = node
        if is_shared:
            with graph.inserting_before(output):
                result = graph.call_function(torch.ops.aten.clone.default, (node,))
            result.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        results.append(result)
    output.args = (tuple(results),)
    return with_graph(exported, graph)

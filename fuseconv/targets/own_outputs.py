"""Gives each output its own memory, so that no output is an alias of another output, an input or a weight.

A model may return the same value twice, or an input, a parameter, or a view of these. A caller who mutates such an
output would change another output, or the weights of all later calls; and in ONNX, one value cannot have two names.
Therefore such outputs are cloned before a target is written.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Graph, Node

from fuseconv.graph.output_memory import clone_outputs, is_given, owners_of_outputs
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph


def own_outputs(program: Program) -> Program:
    """Returns a program that clones every output that may share memory with an input, a weight or an earlier output.

    The given program is not changed. If no output needs a copy, the given program is returned.
    """
    shared = _shared(program.exported.graph)
    if not any(shared):
        return program
    graph = copied(program.exported.graph)
    clone_outputs(graph, shared)
    return replace(program, exported=with_graph(program.exported, graph))


def _shared(graph: Graph) -> list[bool]:
    """Returns for each output whether it may share memory with an input, a weight, or an earlier output."""
    taken: set[Node] = set()
    found = []
    for owners in owners_of_outputs(graph):
        found.append(any(map(is_given, owners)) or bool(owners & taken))
        taken |= owners
    return found

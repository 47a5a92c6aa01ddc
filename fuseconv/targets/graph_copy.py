"""Copies of a program for a target to change. The graph is copied, the weights and fake values are shared."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputSpec, TensorArgument
from torch.fx import Graph, Node


def copied(graph: Graph) -> Graph:
    """Returns a copy of a graph with the same node names."""
    copy, nodes = Graph(), dict[Node, Node]()
    end = copy.output(copy.graph_copy(graph, nodes))
    end.meta = dict(graph.output_node().meta)
    for node, twin in nodes.items():
        twin.name = node.name  # a copy is renamed if its name is a Python builtin, such as `input`
    return copy


def with_graph(exported: ExportedProgram, graph: Graph) -> ExportedProgram:
    """Returns a program with another graph, which must have the same placeholders and number of outputs."""
    signature = exported.graph_signature
    returned: Any = graph.output_node().args[0]
    outputs = [
        OutputSpec(spec.kind, TensorArgument(node.name), spec.target) if isinstance(node, Node) else spec
        for spec, node in zip(signature.output_specs, returned, strict=True)
    ]
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(signature.input_specs, outputs),
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    made._guards_code = exported._guards_code
    return made

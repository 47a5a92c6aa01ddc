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
from torch.export.graph_signature import ExportGraphSignature, OutputSpec, TensorArgument
from torch.fx import Graph, Node

from fuseconv.capture import Program
from fuseconv.matching.aliases import viewed


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
    graph, output = Graph(), exported.graph.output_node()
    copies: dict[Node, Node] = {}
    graph.graph_copy(exported.graph, copies)
    for node, copy in copies.items():
        copy.name = node.name
    returned = _returned(exported.graph)
    results = []
    for node, is_shared in zip(returned, _shared(returned), strict=True):
        result = copies[node]
        if is_shared:
            result = graph.call_function(torch.ops.aten.clone.default, (result,))
            result.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        results.append(result)
    graph.output(tuple(results)).meta = dict(output.meta)
    signature = exported.graph_signature
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(
            signature.input_specs,
            [
                OutputSpec(spec.kind, TensorArgument(result.name), spec.target)
                for spec, result in zip(signature.output_specs, results, strict=True)
            ],
        ),
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    made._guards_code = exported._guards_code
    return made

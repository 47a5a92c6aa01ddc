"""Extracts a segment of a program: a module of the ops that compute wanted values from given values.

The sizes of a segment are static, and come from one call. The segment's inputs are tensors of this call. Sizes that are
computed outside the segment become constants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from fuseconv.blaming.values import values_of
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.graph.op_aliases import name_ops_once
from fuseconv.program.captured import Program


@dataclass(frozen=True)
class Segment:
    """A part of a program as a module, with the input tensors of one call.

    Attributes:
        module: computes the outputs. It expects the tensors in `inputs` in order, and returns a tuple.
        inputs: the input tensors, by the name of their node in the program.
        outputs: the names of the nodes whose values the module returns.
        ops: the ops that the module calls, in order.
    """

    module: GraphModule
    inputs: Mapping[str, torch.Tensor]
    outputs: tuple[str, ...]
    ops: tuple[Any, ...]

    def program(self, device: str) -> Program:
        """Captures the segment with torch.export and returns the program. All sizes of the program are static."""
        return captured(self.module, self.inputs, self.outputs, device)

    def run(self) -> tuple[torch.Tensor, ...]:
        """Runs the module in PyTorch on the inputs, and returns the outputs."""
        with torch.no_grad():
            return tuple(self.module(*(one.clone() for one in self.inputs.values())))


def captured(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str], device: str
) -> Program:
    """Captures a module with torch.export and static sizes, and returns the program.

    Args:
        module: the module to capture. It expects tensors and returns a tuple of tensors.
        inputs: the inputs of the module in order, by their names in the contract.
        outputs: the names of the outputs of the module.
        device: `cpu` or `cuda`.
    """
    given = tuple(inputs.values())
    with torch.no_grad():
        exported = torch.export.export(module, given)
    name_ops_once(exported)
    specs = tuple(
        TensorSpec(name, SHORT_DTYPES.get(str(one.dtype), str(one.dtype)), tuple(one.shape))
        for name, one in inputs.items()
    )
    return Program(exported, Contract(specs, tuple(outputs), device), given)


@dataclass(frozen=True)
class Reach:
    """The nodes that compute wanted values from given values, and the nodes whose values these nodes use.

    Attributes:
        inside: the nodes that compute the wanted values, in graph order.
        tensors: the given values and the inputs of the program that `inside` uses.
        numbers: the sizes and other scalars that `inside` uses.
        weights: the parameters, buffers and constants that `inside` uses.
        modules: the get_attr nodes of the control flow bodies that `inside` uses.
    """

    inside: tuple[Node, ...]
    tensors: tuple[Node, ...]
    numbers: tuple[Node, ...]
    weights: tuple[Node, ...]
    modules: tuple[Node, ...]


def reach(exported: ExportedProgram, given: Collection[str], wanted: Sequence[str]) -> Reach:
    """Returns the nodes that compute the wanted values from the given values, and the operands of these nodes."""
    nodes = {node.name: node for node in exported.graph.nodes}
    users = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    found: dict[str, set[Node]] = {kind: set() for kind in ("inside", "tensors", "numbers", "weights", "modules")}
    queue = [nodes[name] for name in wanted]
    seen = set(queue)
    while queue:
        node = queue.pop()
        kind = _kind(node, given if node.name not in wanted else (), users)
        found[kind].add(node)
        fresh = [one for one in node.all_input_nodes if one not in seen] if kind == "inside" else []
        queue += fresh
        seen.update(fresh)
    order = [node for node in exported.graph.nodes if node in seen]
    return Reach(**{kind: tuple(node for node in order if node in among) for kind, among in found.items()})


def _kind(node: Node, given: Collection[str], users: Collection[str]) -> str:
    if node.op == "get_attr":
        return "modules"
    if node.op == "placeholder":
        return "tensors" if node.name in users else "weights"
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
        return "numbers"
    return "tensors" if node.name in given else "inside"


def between(
    exported: ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    given: Mapping[str, torch.Tensor],
    wanted: Sequence[str],
) -> Segment:
    """Returns the segment that computes the wanted values from the given values.

    Args:
        exported: a program in the flat calling convention.
        inputs: one tensor per input of the program.
        given: the known values, by the name of their node. Only needed values become inputs of the segment.
        wanted: the names of the nodes whose values the segment returns.
    """
    found = reach(exported, given, wanted)
    signature = exported.graph_signature
    targets = {spec.arg.name: spec.target for spec in signature.input_specs}
    fed = {**dict(zip(signature.user_inputs, inputs, strict=True)), **given}
    numbers = values_of(exported, inputs, [node.name for node in found.numbers])
    graph, root, made = Graph(), torch.nn.Module(), dict[Node, Any]()
    for node in found.tensors:
        made[node] = graph.placeholder(node.name)
        made[node].name = node.name
    for node in found.weights:
        tensor = (exported.state_dict | exported.constants)[str(targets[node.name])]
        root.register_buffer(node.name, tensor.detach())
        made[node] = graph.get_attr(node.name)
    for node in found.modules:
        root.add_module(str(node.target), getattr(exported.graph_module, str(node.target)))
        made[node] = graph.get_attr(str(node.target))
    made |= {node: numbers[node.name] for node in found.numbers}
    for node in found.inside:
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].name = node.name
        made[node].meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    nodes = {node.name: node for node in exported.graph.nodes}
    graph.output(tuple(made[nodes[name]] for name in wanted))
    taken = {node.name: fed[node.name].detach() for node in found.tensors}
    ops = tuple(node.target for node in found.inside)
    return Segment(GraphModule(root, graph), taken, tuple(wanted), ops)

"""Copies exported programs with a different graph or different weights. Copies share everything else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from fuseconv.graph.nodes import is_call, written


def copied(graph: Graph) -> Graph:
    """Returns a copy of a graph in which every node has the same name as in the graph."""
    copy, nodes = Graph(), dict[Node, Node]()
    end = copy.output(copy.graph_copy(graph, nodes))
    end.meta = dict(graph.output_node().meta)
    for node, twin in nodes.items():
        twin.name = node.name  # fx renames a copy if its name is a Python builtin, such as `input`
    return copy


def text_of(exported: ExportedProgram) -> str:
    """Returns the text of a program's graph and subgraphs, including constants in the graphs but no weight values."""
    modules = exported.graph_module.modules()
    return "\n".join(str(module.graph) for module in modules if isinstance(module, GraphModule))


def with_graph(exported: ExportedProgram, graph: Graph) -> ExportedProgram:
    """Returns a copy of a program with another graph, which must have the same placeholders and number of outputs."""
    signature = exported.graph_signature
    returned: Any = graph.output_node().args[0]
    outputs = [
        OutputSpec(spec.kind, TensorArgument(node.name), spec.target) if isinstance(node, Node) else spec
        for spec, node in zip(signature.output_specs, returned, strict=True)
    ]
    specs = ExportGraphSignature(signature.input_specs, outputs)
    return _made(exported, graph, specs, exported.state_dict, exported.constants)


def returning(
    exported: ExportedProgram, names: Sequence[str], given: Mapping[str, Tensor] = MappingProxyType({})
) -> ExportedProgram:
    """Returns a copy of a program that returns the values of the given nodes and computes nothing else.

    Args:
        exported: the program, with flat inputs and outputs. The copy has all of its inputs, even unused ones, but none
            of the weights that the copy does not use.
        names: the names of the nodes to return, in order. The value of each node must be a tensor.
        given: the names of nodes that become additional inputs, after the existing inputs. Each maps to an example
            tensor.
    """
    graph, signature = copied(exported.graph), exported.graph_signature
    nodes = {node.name: node for node in graph.nodes}
    starts = [_as_input(graph, nodes[name]) for name in given]
    end = graph.output_node()
    end.args = (tuple(nodes[name] for name in names),)
    end.meta.pop("val", None)
    graph.eliminate_dead_code(_has_effect)
    kept: list[InputSpec] = []
    for spec in signature.input_specs:
        node = nodes[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT or node.users:
            kept.append(spec)
        else:
            graph.erase_node(node)
    kept += [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in starts]
    used = {spec.target for spec in kept if spec.target is not None}
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name), None) for name in names]
    (entry,) = (one for one in exported.module_call_graph if not one.fqn)
    assert entry.signature is not None
    assert exported.example_inputs is not None
    args, kwargs = exported.example_inputs
    args = (*args, *given.values())
    known = entry.signature.forward_arg_names
    flat = replace(
        entry.signature,
        in_spec=pytree.tree_structure((args, kwargs)),
        out_spec=pytree.tree_structure(tuple(names)),
        forward_arg_names=None if known is None else [*known, *(node.name for node in starts)],
    )
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(kept, outputs),
        state_dict={name: tensor for name, tensor in exported.state_dict.items() if name in used},
        range_constraints=exported.range_constraints,
        module_call_graph=[replace(entry, signature=flat)],
        example_inputs=(args, kwargs),
        constants={name: tensor for name, tensor in exported.constants.items() if name in used},
        verifiers=exported.verifiers,
    )
    made._guards_code = exported._guards_code
    return made


def _has_effect(node: Node) -> bool:
    """Returns whether a node must run even if it has no users, because it has a side effect.

    torch's `is_impure` alone does not decide this: it is also true for ops that may generate random numbers, such as
    attention.
    """
    return node.is_impure() and (not is_call(node) or any(written(node)))


def _as_input(graph: Graph, node: Node) -> Node:
    """Adds a placeholder after the existing placeholders, and makes all users of a node use the placeholder instead.

    Returns:
        The placeholder.
    """
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        given = graph.placeholder(f"{node.name}_given")
    given.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(given)
    return given


def with_weights(exported: ExportedProgram, changed: Mapping[str, Any], kept: Collection[str] = ()) -> ExportedProgram:
    """Returns a copy of a program in which some weights are replaced.

    Args:
        exported: the program.
        changed: maps the names of parameters, buffers and constants to new tensors with the same shapes and dtypes.
        kept: the names of the constants that become persistent buffers, so that `load_state_dict` can set them.
    """
    signature = exported.graph_signature
    inputs = [
        replace(spec, kind=InputKind.BUFFER, persistent=True) if spec.target in kept else spec
        for spec in signature.input_specs
    ]
    state = {name: changed.get(name, tensor) for name, tensor in exported.state_dict.items()}
    constants = {name: changed.get(name, tensor) for name, tensor in exported.constants.items()}
    state |= {name: constants.pop(name) for name in kept if name in constants}
    specs = ExportGraphSignature(inputs, signature.output_specs)
    return _made(exported, copied(exported.graph), specs, state, constants)


def _made(
    exported: ExportedProgram,
    graph: Graph,
    signature: ExportGraphSignature,
    state: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> ExportedProgram:
    """Returns a copy of a program with another graph, signature, state dict and constants."""
    made = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=dict(state),
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=dict(constants),
        verifiers=exported.verifiers,
    )
    made._guards_code = exported._guards_code
    return made

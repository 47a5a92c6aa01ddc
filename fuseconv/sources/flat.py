"""Converts an exported program to the flat calling convention: positional tensors in, a tuple of tensors out.

torch.export stores the caller's containers (keyword arguments, dataclasses, caches) in the tree specs of the program. A
program whose tree specs reference a library's class cannot be loaded without the library. The graph itself is already
flat, so only its signature changes: constant inputs and None outputs are removed, and the tree specs become plain
tuples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import trains
from fuseconv.program.original import STATE_AS_INPUT, STATE_FIX


@dataclass(frozen=True)
class Flat:
    """An exported program in the flat calling convention.

    Attributes:
        exported: the program.
        inputs: the names of the inputs, in order.
        outputs: the names of the outputs, in order.
    """

    exported: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def flatten(
    exported: ExportedProgram,
    names: Sequence[str] | None = None,
    call: Sequence[str] = (),
    examples: tuple[torch.Tensor, ...] | None = None,
) -> Flat:
    """Converts a program to the flat calling convention and returns the new program.

    The given program must not be used afterwards.

    Args:
        exported: a program whose inputs and outputs are tensors, in any containers.
        names: the names of the inputs, in the desired order. None keeps the program's names.
        call: for each name in `names`, the keyword with which the given program expects the input, or "" if it is
            positional. Empty if all inputs are positional.
        examples: one example tensor per input, which is stored in the new program. None stores no examples.

    Raises:
        UnsupportedError: an input or output is neither a tensor nor a constant.
    """
    drop_detach(exported)
    graph = exported.graph_module.graph
    signature = exported.graph_signature
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    users = [spec for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    tensors = [spec for spec in users if not isinstance(spec.arg, ConstantArgument)]
    if bad := [spec.arg.name for spec in tensors if not isinstance(spec.arg, TensorArgument)]:
        raise UnsupportedError(
            f"the input {bad[0]} is not a tensor", where=bad[0], fix="make the input a constant of the model"
        )
    order = input_order(exported, call)
    for spec in users:
        if isinstance(spec.arg, ConstantArgument):
            graph.erase_node(placeholders[spec.arg.name])
    wanted = tuple(names) if names is not None else tuple(order)
    kept = [spec for spec in signature.input_specs if spec.kind != InputKind.USER_INPUT]
    states = [(placeholders[spec.arg.name], spec) for spec in kept]
    _rename(graph, [placeholders[name] for name in order], wanted)
    outputs = _outputs(exported)
    graph_output = graph.output_node()
    nodes = _own_nodes(graph, graph_output, [index for index, _ in outputs])
    graph_output.args = (tuple(nodes),)
    flat_signature = ExportGraphSignature(
        [
            *(InputSpec(spec.kind, TensorArgument(node.name), spec.target, spec.persistent) for node, spec in states),
            *(InputSpec(InputKind.USER_INPUT, TensorArgument(name), None) for name in wanted),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in nodes],
    )
    graph.lint()
    exported.graph_module.recompile()
    arguments = pytree.tree_structure((tuple(range(len(wanted))), {}))
    results = pytree.tree_structure(tuple(range(len(nodes))))
    call_signature = ModuleCallSignature([], [], arguments, results, list(wanted))
    # The constraints include multiples of symbols. A program saved with multiples cannot be decomposed (torch 2.13).
    ranges = {symbol: values for symbol, values in exported.range_constraints.items() if symbol.is_Symbol}
    flat = ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=flat_signature,
        state_dict=exported.state_dict,
        range_constraints=ranges,
        module_call_graph=[ModuleCallEntry("", call_signature)],
        example_inputs=None if examples is None else (examples, {}),
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    # The guards refer to the caller's containers, which were removed. If the dims were given explicitly, as `capture`
    # does, the range constraints also contain the guards' constraints on sizes.
    flat._guards_code = []
    return Flat(flat, wanted, _unique([name for _, name in outputs]))


def drop_detach(exported: ExportedProgram) -> None:
    """Removes `detach_` nodes from a program in place.

    A `detach_` has no effect without gradients, and prevents another export of the program. torch.export adds a
    `detach_` for every tensor that forward creates from literals.
    """
    for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
        node.replace_all_uses_with(node.all_input_nodes[0])
        exported.graph.erase_node(node)
    exported.graph_module.recompile()


def is_plain(exported: ExportedProgram) -> bool:
    """Returns whether all inputs of a program are positional tensors, not containers, keywords or constants."""
    users = [spec.arg for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    flat = pytree.tree_structure((tuple(range(len(users))), {}))
    return exported.call_spec.in_spec == flat and all(isinstance(argument, TensorArgument) for argument in users)


def input_order(exported: ExportedProgram, call: Sequence[str]) -> list[str]:
    """Returns the names of the placeholders of a program's tensor inputs in the order of `call`.

    Args:
        exported: a program, before `flatten`.
        call: as for `flatten`. If it is empty, the order is the program's.
    """
    users = [spec for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if not call:
        return [spec.arg.name for spec in users if not isinstance(spec.arg, ConstantArgument)]
    args, kwargs = pytree.tree_unflatten([spec.arg.name for spec in users], exported.call_spec.in_spec)
    left = iter(pytree.tree_leaves(args))
    return [str(kwargs[name] if name else next(left)) for name in call]


def _rename(graph: torch.fx.Graph, inputs: list[torch.fx.Node], names: tuple[str, ...]) -> None:
    """Renames the input placeholders and moves them into the given order, after the parameters."""
    ours = set(inputs)
    for node in graph.nodes:
        if node.name in names and node not in ours:
            node._rename(f"{node.name}_inner")
            if node.op == "placeholder":
                node.target = node.name
    for position, node in enumerate(inputs):
        node.name = f"fuseconv_input_{position}"
    last = next(node for node in graph.nodes if node.op != "placeholder")
    for node, name in zip(inputs, names, strict=True):
        node.name = node.target = name
        last.prepend(node)


def _outputs(exported: ExportedProgram) -> list[tuple[int, str]]:
    """Returns, for each tensor output, its position in the graph's output and a readable name.

    Raises:
        UnsupportedError: the program mutates an input or buffer, or an output is neither a tensor nor None.
    """
    specs = exported.graph_signature.output_specs
    if bad := [spec for spec in specs if spec.kind != OutputKind.USER_OUTPUT]:
        raise UnsupportedError(
            f"the exported program mutates {bad[0].target} ({bad[0].kind.name.lower()})",
            where=str(bad[0].target),
            fix=_fix(exported, bad[0]),
        )
    positions = pytree.tree_unflatten(list(range(len(specs))), exported.call_spec.out_spec)
    found = []
    for path, index in _leaves(positions):
        argument = specs[index].arg
        if isinstance(argument, TensorArgument):
            found.append((index, _name(path, index)))
        elif not (isinstance(argument, ConstantArgument) and argument.value is None):
            raise UnsupportedError(
                f"output {_name(path, index)} is not a tensor ({type(argument).__name__})",
                where=_name(path, index),
                fix="return only tensors from forward",
            )
    return found


def _fix(exported: ExportedProgram, output: OutputSpec) -> str:
    """Returns the fix in the error for a program with an output that is the new value of an input or buffer."""
    if output.kind == OutputKind.USER_INPUT_MUTATION:
        return "save the program as torch.export.export returns it, without run_decompositions"
    if any(trains(node) for node in exported.graph.nodes):
        return f"export the model in eval mode, or {STATE_AS_INPUT}"
    return STATE_FIX


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the key path and the value of each leaf of nested containers, in the order of `tree_leaves`.

    If a library registered a container class without keys, its key paths use the keys of the mapping, or else indices.
    """
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if node is None:
        yield path, value
        return
    children, _ = node.flatten_fn(value)
    if node.flatten_with_keys_fn is not None:
        keys = [key for key, _ in node.flatten_with_keys_fn(value)[0]]
    elif isinstance(value, Mapping) and len(value) == len(children):
        keys = [pytree.MappingKey(key) for key in value]
    else:
        keys = [pytree.SequenceKey(at) for at in range(len(children))]
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, (*path, key))


def _name(path: tuple[Any, ...], index: int) -> str:
    """Returns an output's name, made from its key path: `past_key_values_0`, or `output_1` without a key."""
    words = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    name = re.sub(r"\W+", "_", "_".join(words)).strip("_")
    return name if re.match(r"[A-Za-z]", name) else f"output_{name or index}"


def _unique(names: list[str]) -> tuple[str, ...]:
    return tuple(
        name if names.index(name) == at else f"{name}_{names[:at].count(name)}" for at, name in enumerate(names)
    )


def _own_nodes(graph: torch.fx.Graph, output: torch.fx.Node, positions: list[int]) -> list[torch.fx.Node]:
    """Returns one node per output, and inserts a clone if the output is a placeholder or the same as an earlier output.

    Args:
        graph: the graph, which is modified in place.
        output: the output node of the graph.
        positions: the positions of the outputs in the arguments of `output`.
    """
    results = output.args[0]
    assert isinstance(results, tuple | list)
    nodes: list[torch.fx.Node] = []
    for position in positions:
        node = results[position]
        assert isinstance(node, torch.fx.Node)
        if node.op == "placeholder" or node in nodes:
            with graph.inserting_before(output):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {"val": node.meta["val"], "stack_trace": node.meta.get("stack_trace")}
            node = copy
        nodes.append(node)
    return nodes

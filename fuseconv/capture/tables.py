"""Computes the tables that a model builds with in-place writes, from no input and no weight, when it is captured.

Examples are the indices of relative positions in vision transformers, which `forward` writes part by part. Rules do not
fold them, because a rule replaces values and not memory. torch.compile and AOTInductor compute them in every call, and
torch 2.13 fails to compile some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from fuseconv.graph.aliases import Aliases
from fuseconv.graph.nodes import draws, is_call, is_getitem, is_returned, map_nodes

LARGEST = 1 << 20
"""A table of more bytes stays in the graph, because it would enlarge the bundle."""


def compute_tables(exported: ExportedProgram) -> None:
    """Replaces each such table of a newly captured program by a constant, in place. Equal tables become one constant.

    A table stays in the graph if it is an output, has more than `LARGEST` bytes, or is read by an op with an input or a
    weight before the last write to it.
    """
    aliases = Aliases(exported.graph, exported.graph_module)
    if not aliases.writers:
        return
    given = _lifted(exported)
    known = _independent(exported, aliases, given)
    written = _reached(known, aliases)
    tables = [node for node in exported.graph.nodes if node in written and not written.issuperset(node.users)]
    if not tables or not all(_is_replaceable(table, written, aliases) for table in tables):
        return
    values = _computed(exported, known, given)
    constants: list[tuple[Node, Tensor]] = []
    for table in tables:
        value = values[table].clone()
        same = (node for node, other in constants if _is_same(value, other))
        constant = next(same, None) or add_constant(exported, value, table)
        constants.append((constant, value))
        table.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in written)
    for node in reversed(list(exported.graph.nodes)):
        if node in written or (node in known and not node.users):
            exported.graph.erase_node(node)
    exported.graph.lint()
    exported.graph_module.recompile()


def _lifted(exported: ExportedProgram) -> dict[str, Tensor]:
    """Returns the constant tensors of the model's code, by the names of their placeholders."""
    specs = [spec for spec in exported.graph_signature.input_specs if spec.kind == InputKind.CONSTANT_TENSOR]
    return {spec.arg.name: exported.constants[str(spec.target)] for spec in specs}


def _independent(exported: ExportedProgram, aliases: Aliases, given: Mapping[str, Tensor]) -> set[Node]:
    """Returns the ops that depend on no input and no weight, also not through memory that other ops write."""
    known: set[Node] = set()
    for node in exported.graph.nodes:
        operands = [used for used in node.all_input_nodes if used.name not in given]
        if _is_evaluated(node) and known.issuperset(operands):
            known.add(node)
    while outside := {node for node in known if not _memory(node, aliases, known) or not _reads(node, known, given)}:
        known -= outside
    return known


def _is_evaluated(node: Node) -> bool:
    return (is_call(node) or is_getitem(node)) and not draws(node)


def _memory(node: Node, aliases: Aliases, known: set[Node]) -> bool:
    """Returns whether all ops that write to the memory of a node, or read it through a view, are known."""
    return all(known.issuperset({writer, *shared}) for writer, shared in aliases.writers.items() if node in shared)


def _reads(node: Node, known: set[Node], given: Mapping[str, Tensor]) -> bool:
    return all(used in known or used.name in given for used in node.all_input_nodes)


def _reached(known: set[Node], aliases: Aliases) -> set[Node]:
    """Returns the known ops that write to memory, share written memory, or use the results of such ops."""
    reached = {node for node in known if node in aliases.writers or aliases.is_written(node)}
    for node in sorted(known):
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return reached


def _is_replaceable(table: Node, written: set[Node], aliases: Aliases) -> bool:
    value = table.meta.get("val")
    if not isinstance(value, Tensor) or is_returned(table) or any(isinstance(one, torch.SymInt) for one in value.shape):
        return False
    if value.numel() * value.element_size() > LARGEST:
        return False
    last = max(aliases.writers_after(table), default=table)
    return all(user in written or user > last for user in table.users)


def _computed(exported: ExportedProgram, known: set[Node], given: Mapping[str, Tensor]) -> dict[Node, Any]:
    """Runs the known ops in order, and returns their results."""
    values: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        return values[node] if node in values else given[node.name]

    with torch.no_grad():
        for node in exported.graph.nodes:
            if node in known:
                args, *rest = map_nodes([list(node.args), *node.kwargs.values()], value)
                values[node] = node.target(*args, **dict(zip(node.kwargs, rest, strict=True)))
    return values


def _is_same(one: Tensor, other: Tensor) -> bool:
    kinds = [(tensor.dtype, tensor.device, tensor.shape, tensor.stride()) for tensor in (one, other)]
    # 0.0 equals -0.0, but a division by them does not.
    signs = [tensor.signbit() for tensor in (one, other) if tensor.is_floating_point()]
    return kinds[0] == kinds[1] and torch.equal(one, other) and (not signs or torch.equal(*signs))


def add_constant(exported: ExportedProgram, value: Tensor, table: Node) -> Node:
    """Adds a constant tensor in place of a node to a program, and returns its placeholder."""
    specs, graph = exported.graph_signature.input_specs, exported.graph
    at = next((at for at, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT), len(specs))
    following = list(graph.nodes)[at]  # the first user input, or the first op
    with graph.inserting_before(following):
        node: Node = graph.placeholder(f"c_{table.name}")
    node.meta["val"] = table.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    specs.insert(at, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name, None))
    exported.constants[node.name] = value
    return node

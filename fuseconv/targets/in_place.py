"""Makes a program write a state, such as a key-value cache, into its input, so that a call does not copy the state.

A method returns the next state as outputs, which must not be its inputs. So a program with a cache copies the cache and
writes the new keys and values into the copy. An artifact whose caller owns the state needs no copy: the program of the
artifact writes into the input and returns it. A state that is computed anew in each call is an output as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from fuseconv.graph.nodes import arguments, is_call, nodes_in, written
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph
from fuseconv.targets.own_outputs import own_outputs

_READ_NO_VALUES = (torch.ops.aten.sym_size.int,)
"""The ops that read only the shape of a tensor, which a write does not change."""


def in_place(program: Program) -> Program:
    """Returns a program that writes into a state input where it would write into a copy of the input.

    The given program is not changed. No output shares memory with another output, a weight, or another input.
    """
    program = own_outputs(program)
    if not _copies(program, program.exported.graph):
        return program
    graph = copied(program.exported.graph)
    for copy in _copies(program, graph).values():
        (place,) = nodes_in(copy.args[0])
        copy.replace_all_uses_with(place)
        graph.erase_node(copy)
    return replace(program, exported=with_graph(program.exported, graph))


def updated_in_place(program: Program) -> tuple[str, ...]:
    """Returns the names of the state inputs into which the program that `in_place` returns writes the next state."""
    program = own_outputs(program)
    return tuple(_copies(program, program.exported.graph))


def _copies(program: Program, graph: Graph) -> Mapping[str, Node]:
    """Returns the copies of state inputs into which the program writes the next state, by the names of the inputs.

    Args:
        program: the program, no output of which shares memory with an input or another output.
        graph: the graph of the program, or a copy of it.
    """
    contract, nodes = program.contract, {node.name: node for node in graph.nodes}
    if not contract.state:
        return {}
    places = dict(zip(contract.names, program.exported.graph_signature.user_inputs, strict=True))
    returned: Any = graph.output_node().args[0]
    results = dict(zip(contract.outputs, returned, strict=True))
    found = {name: _written_copy(nodes[str(places[name])], results[output]) for name, output in contract.state}
    return {name: copy for name, copy in found.items() if copy is not None}


def _written_copy(place: Node, result: Node) -> Node | None:
    """Returns the copy of a state input that becomes the next state through writes into the copy, or None.

    Returns None if anything else reads the values of the input, because a write into the input would change them.
    """
    copy = result
    while _writes_and_returns_its_first_argument(copy):
        (copy,) = nodes_in(copy.args[0])
    if copy is result or not is_call(copy) or copy.target is not torch.ops.aten.clone.default:
        return None
    given = arguments(copy)
    readers = [user for user in place.users if user is not copy and user.target not in _READ_NO_VALUES]
    return copy if given["self"] is place and given["memory_format"] is None and not readers else None


def _writes_and_returns_its_first_argument(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.inplace_view in target.tags or not node.args:
        return False
    return any(operand is node.args[0] for operand in written(node)) and len(target._schema.returns) == 1

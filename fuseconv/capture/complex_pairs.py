"""Computes products of complex numbers as pairs of real numbers.

Some models rotate queries and keys by a product of complex numbers: `view_as_real(view_as_complex(x) * freqs)`.
Inductor calls PyTorch's kernel for each op on complex numbers, ONNX has no such ops, and no rule matches them. A
complex tensor of shape [...] is therefore represented by the real tensor [..., 2] that `view_as_real` returns, from
where complex numbers are made of real ones, or read from a weight, to where real numbers are made of them again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fuseconv.capture.complex_meanings import Pairs, forget_erased, is_complex, is_translated, operands
from fuseconv.graph.aliases import Aliases
from fuseconv.graph.all_sizes import GuardError

_aten = torch.ops.aten
_ENDS = (_aten.view_as_real.default, _aten.real.default, _aten.imag.default)
"""The ops that make real numbers of complex ones."""


def pair_complex_numbers(exported: ExportedProgram) -> None:
    """Replaces ops on complex numbers between real ones by ops on real numbers, in place.

    An op that is not in `MEANINGS`, such as a Fourier transform, stays, and its result is viewed as real numbers. All
    ops stay if a complex tensor is written in place.
    """
    graph = exported.graph
    ends = [node for node in graph.nodes if node.target in _ENDS and is_translated(node.args[0])]
    if not ends:
        return
    aliases = Aliases(graph, exported.graph_module)
    wanted = _sources({end.args[0] for end in ends})
    if any(aliases.is_written(node) for node in (*wanted, *ends)):
        return
    pairs = Pairs(exported)
    try:
        for node in [node for node in graph.nodes if node in wanted]:
            pairs.add(node)
    except (GuardError, GuardOnDataDependentSymNode):  # the layout of a result depends on sizes
        pairs.undo()
        return
    for end in ends:
        pair = pairs.known[end.args[0]]
        with graph.inserting_before(end):
            result = pair if end.target is _ENDS[0] else pairs.part(pair, _ENDS.index(end.target) - 1)
        end.replace_all_uses_with(result)
        graph.erase_node(end)
    for node in reversed(list(graph.nodes)):
        given = node.op == "placeholder" and node.name not in pairs.constants
        if _checks(node, wanted) or (node in wanted and not node.users and not given):
            graph.erase_node(node)
    forget_erased(exported)
    graph.lint()
    exported.graph_module.recompile()


def _checks(node: Node, wanted: set[Any]) -> bool:
    """Returns whether a node checks the dtype of a complex tensor, which is known."""
    return node.target is _aten._assert_tensor_metadata.default and node.args[0] in wanted


def _sources(wanted: set[Any]) -> set[Any]:
    """Adds the complex operands of translated ops, and theirs."""
    found, remaining = set(wanted), list(wanted)
    while remaining:
        node = remaining.pop()
        if is_translated(node):
            more = {one for one in operands(node) if isinstance(one, Node) and is_complex(one)} - found
            found |= more
            remaining += more
    return found

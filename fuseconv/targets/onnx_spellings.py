"""Rewrites a program for the ONNX exporter: replaces ops that the exporter translates wrongly or not at all.

The replacements are written in plain PyTorch, so that tests can compare each replacement with the op that it replaces.
Correcting the exporter's errors here makes the bundle correct in every version and configuration of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fuseconv.graph.nodes import arguments
from fuseconv.ops import OPS
from fuseconv.program.graph_copy import copied, with_graph
from fuseconv.targets import onnx_arithmetic, onnx_layout, onnx_reductions

SPELLINGS: Mapping[Any, Callable[..., Any]] = {
    **onnx_arithmetic.SPELLINGS,
    **onnx_layout.SPELLINGS,
    **onnx_reductions.SPELLINGS,
    **{op.overload: op.reference for op in OPS if not op.onnx_node},
}


def prepared(exported: ExportedProgram) -> ExportedProgram:
    """Returns a copy of the program with the changes that the exporter requires, or the program if none are required.

    A number becomes a constant tensor where the op's schema declares a tensor. Integer bounds of a floating clamp are
    written as floats: the exporter's type promotion fails if only one of the bounds is an integer. A 16-bit output is
    cloned: the exporter computes some ops in float32 and converts their results back for other nodes, but not for
    outputs of the program.
    """
    numbers = [(node, name) for node in exported.graph.nodes for name in _numbers(node)]
    bounded = [node for node in exported.graph.nodes if _has_integer_bounds(node)]
    returned: Any = exported.graph.output_node().args[0]
    if not numbers and not bounded and not any(_is_half(node) for node in returned):
        return exported
    graph = copied(exported.graph)
    nodes = {node.name: node for node in graph.nodes}
    for node, name in numbers:
        _write_as_tensor(graph, nodes[node.name], name)
    for node in bounded:
        copy = nodes[node.name]
        copy.args = (copy.args[0], *(float(bound) if isinstance(bound, int) else bound for bound in copy.args[1:]))
    _copy_halves(graph.output_node())
    return with_graph(exported, graph)


def respelling(table: Mapping[Any, Callable[..., Any]], device: str) -> dict[Any, Callable[..., Any]]:
    """Returns the exporter's decomposition table extended with the replacements of this package.

    For the CPU, the table also replaces the ops whose ONNX Runtime CPU kernels are imprecise. The exporter traces the
    program to apply its decompositions, so replacements in the same table need no second trace.

    Args:
        table: maps each op to the exporter's decomposition. If a replacement returns NotImplemented, the op's
            decomposition is used.
        device: `cpu` or `cuda`: the device for which the model is written.
    """
    spellings = {**SPELLINGS, **onnx_arithmetic.ON_CPU} if device == "cpu" else SPELLINGS
    chosen = {op: _first_of(spelling, table[op]) if op in table else spelling for op, spelling in spellings.items()}
    return {**table, **chosen}


def _first_of(spelling: Callable[..., Any], decomposition: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = spelling(*args, **kwargs)
        return decomposition(*args, **kwargs) if result is NotImplemented else result

    return replacement


_SELECTIONS = (torch.ops.aten.where.Scalar, torch.ops.aten.where.ScalarSelf, torch.ops.aten.where.ScalarOther)


def _numbers(node: Node) -> list[str]:
    """Returns the names of the arguments that must become tensors.

    These are numbers for which the schema declares a tensor and, for a `where` that returns bool, all other numbers.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    given = arguments(node)
    selects = node.target in _SELECTIONS and node.meta["val"].dtype == torch.bool
    return [
        argument.name
        for argument in node.target._schema.arguments
        if (argument.type.kind() == "TensorType" or selects) and isinstance(given[argument.name], bool | int | float)
    ]


def _write_as_tensor(graph: Graph, node: Node, name: str) -> None:
    """Replaces a number argument with a constant tensor, because the exporter's type promotion requires tensors."""
    number = arguments(node)[name]
    if node.target in _SELECTIONS:
        node.target = torch.ops.aten.where.self
    others = [given for given in map(_value, node.all_input_nodes) if isinstance(given, torch.Tensor)]
    dtype = torch.result_type(others[0], number) if others else None
    with graph.inserting_before(node):
        constant = graph.call_function(torch.ops.aten.full.default, ([], number), {"dtype": dtype})
    mode = others[0].fake_mode if others and isinstance(others[0], FakeTensor) else FakeTensorMode()
    with mode:
        constant.meta = {"val": torch.full([], number, dtype=dtype)}
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if name in node.kwargs:
        node.update_kwarg(name, constant)
    else:
        node.update_arg(names.index(name), constant)


def _has_integer_bounds(node: Node) -> bool:
    if node.target is not torch.ops.aten.clamp.default or not node.meta["val"].dtype.is_floating_point:
        return False
    return any(isinstance(bound, int) for bound in node.args[1:])


def _is_half(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _copy_halves(output: Node) -> None:
    returned: Any = output.args[0]
    results = list(returned)
    for at, node in enumerate(results):
        if _is_half(node):
            with output.graph.inserting_before(output):
                results[at] = output.graph.call_function(torch.ops.aten.clone.default, (node,))
            results[at].meta = dict(node.meta)
    output.args = (tuple(results),)


def _value(node: Node) -> Any:
    return node.meta.get("val")

"""Corrects ONNX matrix products whose inner (summed) axis may have size 0.

ONNX Runtime fuses a Transpose into the MatMul that uses it, as FusedMatMul. If the inner axis has size 0, the batched
FusedMatMul kernel leaves the result uninitialized or crashes the process (SIGFPE). This was seen in version 1.31 on a
CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import sympy
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


def widen_empty_sums(model: ir.Model, ranges: Mapping[sympy.Symbol, ValueRanges[Any]]) -> None:
    """Pads the inner axis of both operands with one zero in every MatMul that has a transposed operand.

    The padding does not change the result. A MatMul whose inner axis is never empty is left unchanged.

    Args:
        model: the model, which is changed in place.
        ranges: maps each symbol in the shapes of the model to its range of sizes.
    """
    named = {str(symbol): (symbol, bounds) for symbol, bounds in ranges.items()}
    for node in list(model.graph.all_nodes()):
        if node.op_type != "MatMul" or not any(_is_transposed(value) for value in node.inputs):
            continue
        left, right = node.inputs
        assert left is not None
        assert right is not None
        if left.shape is None or right.shape is None or not _may_be_empty(left.shape[-1], named):
            continue
        _append_zeros(node, 0, len(left.shape) - 1)
        _append_zeros(node, 1, max(len(right.shape) - 2, 0))


def _is_transposed(value: ir.Value | None) -> bool:
    source = None if value is None else value.producer()
    while source is not None and source.op_type == "Cast" and source.inputs[0] is not None:
        source = source.inputs[0].producer()
    return source is not None and source.op_type == "Transpose"


def _may_be_empty(size: int | ir.SymbolicDim, named: Mapping[str, tuple[sympy.Symbol, ValueRanges[Any]]]) -> bool:
    if isinstance(size, int):
        return size == 0
    if size.value is None:
        return True
    expression = sympy.sympify(size.value, locals={name: symbol for name, (symbol, _) in named.items()})
    bounds = dict(named.values())
    return not (expression.free_symbols <= bounds.keys() and bound_sympy(expression, bounds).lower > 0)


def _append_zeros(node: ir.Node, operand: int, axis: int) -> None:
    """Inserts a Pad node that appends one slice of zeros to an operand of `node` along an axis."""
    value = node.inputs[operand]
    assert value is not None
    assert value.shape is not None
    assert node.graph is not None
    pads = [0] * (2 * len(value.shape))
    pads[len(value.shape) + axis] = 1
    widths = ir.node("Constant", [], attributes={"value_ints": pads})
    wider = ir.node("Pad", [value, widths.outputs[0]])
    node.graph.insert_before(node, [widths, wider])
    node.replace_input_with(operand, wider.outputs[0])

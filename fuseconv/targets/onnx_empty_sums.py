"""Corrects ONNX matrix products whose inner (summed) axis may have size 0.

ONNX Runtime fuses a Transpose into the MatMul that uses it, as FusedMatMul. If the inner axis has size 0, the batched
FusedMatMul kernel leaves the result uninitialized or crashes the process (SIGFPE). This was seen in version 1.31 on a
CPU.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseconv.targets.onnx_sizes import Sizes


def widen_empty_sums(model: ir.Model, sizes: Sizes) -> None:
    """Pads the inner axis of both operands with one zero in every MatMul that has a transposed operand.

    The padding does not change the result. A MatMul whose inner axis is never empty is left unchanged.

    Args:
        model: the model, which is changed in place.
        sizes: the ranges of the sizes in the shapes of the model.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "MatMul" or not any(_is_transposed(value) for value in node.inputs):
            continue
        left, right = node.inputs
        assert left is not None
        assert right is not None
        if left.shape is None or right.shape is None or sizes.smallest(left.shape[-1]) > 0:
            continue
        _append_zeros(node, 0, len(left.shape) - 1)
        _append_zeros(node, 1, max(len(right.shape) - 2, 0))


def _is_transposed(value: ir.Value | None) -> bool:
    source = None if value is None else value.producer()
    while source is not None and source.op_type == "Cast" and source.inputs[0] is not None:
        source = source.inputs[0].producer()
    return source is not None and source.op_type == "Transpose"


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

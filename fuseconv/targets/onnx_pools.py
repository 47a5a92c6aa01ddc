"""Corrects 3D convolutions, and pooling after padding, in ONNX.

The exporter adds a bias of the wrong rank to a Conv3d without bias. ONNX Runtime's optimizer fuses a zero Pad into the
pool that uses it. This is wrong for MaxPool, which pads with -inf instead of zeros, and every pool rejects padding as
large as its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    groups: int = 1,
) -> Any:
    """Translates `aten.conv3d`.

    Args:
        x: [N, C, D, H, W] or [C, D, H, W].
        weight: [O, C / groups, d, h, w].
        bias: [O], or None for 0.
        stride: one number per axis, or one number for all axes. The same holds for `padding` and `dilation`.
        padding: the padding on both sides of each axis.
        dilation: the spacing of the weight's elements along each axis.
        groups: the number of groups, which divides C and O.
    """
    stride, padding, dilation = (
        list(value) * 3 if len(value) == 1 else list(value) for value in (stride, padding, dilation)
    )
    is_one = len(x.shape) == 4
    first = op.Constant(value_ints=[0])
    operands = [op.Unsqueeze(x, first) if is_one else x, weight, *([] if bias is None else [bias])]
    result = op.Conv(*operands, strides=stride, pads=[*padding, *padding], dilations=dilation, group=groups)
    return op.Squeeze(result, first) if is_one else result


def keep_pads(model: ir.Model) -> None:
    """Adds the optional `axes` input to every Pad that a pool uses, because ONNX Runtime does not fuse such a Pad."""
    for node in list(model.graph.all_nodes()):
        users = [user for user, _ in node.outputs[0].uses()]
        if node.op_type != "Pad" or len(node.inputs) > 3 or not any("Pool" in user.op_type for user in users):
            continue
        shape = node.inputs[0].shape
        assert shape is not None, "the exporter knows the rank of every tensor"
        axes = ir.node("Constant", [], attributes={"value_ints": list(range(len(shape)))})
        node.graph.insert_before(node, axes)
        node.resize_inputs(4)
        node.replace_input_with(3, axes.outputs[0])

"""Convolutions of volumes, and pools after a pad, in ONNX.

The exporter gives a Conv3d without bias a bias of the wrong rank. ONNX Runtime's optimiser merges a Pad of zeros into
the pool that reads it; a MaxPool pads with -inf, so that zeros at the border are lost, and a pool refuses a padding of
its window's size.
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
        x: [N, C, D, H, W], or one volume without N.
        weight: [O, C / groups, d, h, w].
        bias: [O], or None for 0.
        stride: of each axis, or one number for all; so are the next two.
        padding: on both sides of each axis.
        dilation: of the weight.
        groups: divides C and O.
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
    """Names the axes of every Pad that a pool reads: ONNX Runtime leaves such a Pad as it is."""
    for node in list(model.graph.all_nodes()):
        readers = [reader for reader, _ in node.outputs[0].uses()]
        if node.op_type != "Pad" or len(node.inputs) > 3 or not any("Pool" in reader.op_type for reader in readers):
            continue
        shape = node.inputs[0].shape
        assert shape is not None, "the exporter knows the rank of every tensor"
        axes = ir.node("Constant", [], attributes={"value_ints": list(range(len(shape)))})
        node.graph.insert_before(node, axes)
        node.resize_inputs(4)
        node.replace_input_with(3, axes.outputs[0])

"""Group norm in ONNX, in the precision of its input: the exporter's own translation computes float64 in float32."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op


def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    """Translates `aten.group_norm`.

    Args:
        x: [N, C, ...].
        num_groups: divides C.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: is added to the variance.
        cudnn_enabled: changes nothing.
    """
    del cudnn_enabled
    channels = op.Shape(x, start=1, end=2)
    weight, bias = (
        op.ConstantOfShape(channels, value=ir.tensor([absent], dtype=x.dtype)) if given is None else given
        for given, absent in ((weight, 1), (bias, 0))
    )
    # What the operator's moments are computed in; it takes bfloat16 and float16 to float32.
    stash = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return op.GroupNormalization(x, weight, bias, epsilon=eps, num_groups=num_groups, stash_type=stash.value)

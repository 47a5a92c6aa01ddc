"""Translates group and instance norm to ONNX accurately, even if the variance is small compared with the mean.

ONNX's GroupNormalization computes the variance as the mean of squares minus the square of the mean. ONNX Runtime's
InstanceNormalization subtracts the scaled mean from the scaled input. Both lose all digits if the variance is small
compared with the mean, and 1/sqrt(eps) = 316 amplifies the error. This module uses basic operators instead: before
squaring, it subtracts the mean twice, so that the second subtraction removes the rounding error of the first mean.
On a CPU, `onnx_long_sums` makes the means of large groups accurate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op


def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    """Translates `aten.group_norm`.

    Args:
        x: [N, C, ...].
        num_groups: the number of groups, which divides C.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: added to the variance.
        cudnn_enabled: ignored.
    """
    del cudnn_enabled
    wide = _wide(x.dtype)
    values = x if wide == x.dtype else op.Cast(x, to=wide)
    groups = op.Reshape(values, _by_groups(x, num_groups), allowzero=1)
    groups.shape = ir.Shape([x.shape[0], num_groups, _width(x.shape[1], num_groups), *x.shape[2:]])
    dims = op.Constant(value_ints=list(range(2, len(x.shape) + 1)))
    for _ in range(2):
        groups = op.Sub(groups, op.ReduceMean(groups, dims))
    variance = op.ReduceMean(op.Mul(groups, groups), dims)
    normed = op.Div(groups, op.Sqrt(op.Add(variance, op.Constant(value=ir.tensor(eps, dtype=wide)))))
    result = _affine(op.Reshape(normed, op.Shape(x)), weight, bias, len(x.shape), wide)
    return result if wide == x.dtype else op.CastLike(result, x)


def instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Translates `aten.instance_norm`: a group norm with one channel per group, or with the running mean and variance.

    Args:
        x: [N, C, ...]; C is static.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        running_mean: [C], used if `use_input_stats` is False.
        running_var: [C], used if `use_input_stats` is False.
        use_input_stats: whether to use the moments of x.
        momentum: ignored, because it affects only the update of the running moments.
        eps: added to the variance.
        cudnn_enabled: ignored.
    """
    del momentum
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps, cudnn_enabled)
    rank, wide = len(x.shape), _wide(x.dtype)
    mean, variance = (_by_channel(moment, rank, wide) for moment in (running_mean, running_var))
    values = x if wide == x.dtype else op.Cast(x, to=wide)
    scale = op.Sqrt(op.Add(variance, op.Constant(value=ir.tensor(eps, dtype=wide))))
    result = _affine(op.Div(op.Sub(values, mean), scale), weight, bias, rank, wide)
    return result if wide == x.dtype else op.CastLike(result, x)


def _wide(dtype: ir.DataType) -> ir.DataType:
    """Returns the dtype for computing moments: at least float32, as in PyTorch."""
    return ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def _by_groups(x: Any, groups: int) -> Any:
    """Returns the shape [N, groups, C / groups, ...], computed: ONNX cannot infer a size (-1) of an empty tensor."""
    given, width = op.Constant(value_ints=[groups]), _width(x.shape[1], groups)
    width = op.Constant(value_ints=[width]) if isinstance(width, int) else op.Div(op.Shape(x, start=1, end=2), given)
    return op.Concat(op.Shape(x, end=1), given, width, op.Shape(x, start=2), axis=0)


def _width(channels: int | ir.SymbolicDim, groups: int) -> int | ir.SymbolicDim:
    """Returns the number of channels in a group."""
    return channels // groups if isinstance(channels, int) else ir.SymbolicDim(f"({channels.value})//{groups}")


def _affine(normed: Any, weight: Any, bias: Any, rank: int, wide: ir.DataType) -> Any:
    scaled = normed if weight is None else op.Mul(normed, _by_channel(weight, rank, wide))
    return scaled if bias is None else op.Add(scaled, _by_channel(bias, rank, wide))


def _by_channel(value: Any, rank: int, wide: ir.DataType) -> Any:
    """Reshapes [C] to [C, 1, ...], which broadcasts to [N, C, ...]."""
    axes: Sequence[int] = range(1, rank - 1)
    value = value if value.dtype == wide else op.Cast(value, to=wide)
    return op.Unsqueeze(value, op.Constant(value_ints=list(axes))) if axes else value

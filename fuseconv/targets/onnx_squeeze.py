"""Translates squeeze to ONNX so that an axis of dynamic size is removed if its size is 1 at run time, as in PyTorch.

The exporter always keeps an axis of dynamic size, as do the shapes of torch.export.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op


def squeeze(x: Any) -> Any:
    """Translates `aten.squeeze` of all axes."""
    return squeeze_dims(x, range(len(x.shape)))


def squeeze_dim(x: Any, dim: int) -> Any:
    """Translates `aten.squeeze` of one axis."""
    return squeeze_dims(x, [dim])


def squeeze_dims(x: Any, dim: Sequence[int]) -> Any:
    """Translates `aten.squeeze` of several axes.

    Args:
        x: of any dtype and a known rank. A tensor of rank 0 is returned unchanged.
        dim: the axes, which are removed if their size is 1.
    """
    rank = len(x.shape)
    axes = [axis % rank for axis in dim] if rank else []
    if all(isinstance(x.shape[axis], int) for axis in axes):
        ones = [axis for axis in axes if x.shape[axis] == 1]
        return op.Squeeze(x, _constant(ones)) if ones else op.Identity(x)
    sizes = op.Shape(x)
    others = _constant([int(axis not in axes) for axis in range(rank)])
    kept = op.Or(op.Cast(others, to=ir.DataType.BOOL), op.Not(op.Equal(sizes, _constant([1]))))
    return op.Reshape(x, op.Compress(sizes, kept), allowzero=1)


def _constant(numbers: list[int]) -> Any:
    return op.Constant(value=ir.tensor(numbers, dtype=ir.DataType.INT64))

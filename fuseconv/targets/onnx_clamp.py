"""Translates clamps to Max and Min, because Clip without a bound clamps infinity to the largest finite number."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op

_FLOATING = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002  # the op's own names
    """Translates `aten.clamp` with numbers as bounds.

    NaN is preserved. If min > max, all results that are not NaN are max.

    Args:
        x: of any real dtype.
        min: a number, or None for no bound.
        max: a number, or None for no bound.
    """
    if x.dtype not in _FLOATING or (min is not None and max is not None and min <= max):
        return op.Clip(x, *(None if bound is None else _constant(bound, x.dtype) for bound in (min, max)))
    result = x if min is None else op.Max(x, _constant(min, x.dtype))
    return result if max is None else op.Min(result, _constant(max, x.dtype))


def clamp_min(x: Any, min: Any) -> Any:  # noqa: A002
    """Translates `aten.clamp_min` with a number."""
    return clamp(x, min=min)


def clamp_max(x: Any, max: Any) -> Any:  # noqa: A002
    """Translates `aten.clamp_max` with a number."""
    return clamp(x, max=max)


def _constant(number: Any, dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor(number, dtype=dtype))

"""Translates attention to ONNX so that the output of a fully masked query is zero, as in PyTorch.

In PyTorch's attention, the softmax of a row of -inf is 0; in ONNX, it is NaN. The exporter avoids the NaN by masking
with the lowest finite number, so that the output of a fully masked query is the mean of all values.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript import opset22 as op

from fuseconv.targets.onnx_numbers import PRODUCT


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translates `aten.scaled_dot_product_attention`: softmax(scale Q K^T + mask) V.

    Without a mask, or with a causal mask, every row has a finite score if the inputs are finite, so one Softmax is
    enough.

    Args:
        query: [..., heads, queries, width].
        key: [..., key heads, keys, width].
        value: [..., value heads, keys, value width].
        attn_mask: broadcasts to [..., heads, queries, keys]. A bool mask is True where a query may see a key; other
            masks are added.
        dropout_p: 0 in every captured program.
        is_causal: whether a query sees only the keys up to its own position.
        scale: the factor of the scores. Default: 1 / sqrt(width).
        enable_gqa: whether heads is a multiple of key heads and of value heads; adjacent heads share a key head and a
            value head.
    """
    assert dropout_p == 0, "capture refuses what draws at random"
    scaled, columns = op.Mul(query, _scale(query, scale)), _transposed(key)
    scores = _grouped_product(query, scaled, key, columns) if enable_gqa else _product(query, scaled, columns)
    if is_causal:
        scores = op.Add(scores, _causal_mask(query, key))
    weights = op.Softmax(scores, axis=-1) if attn_mask is None else _masked_softmax(scores, attn_mask, query.dtype)
    return _grouped_product(query, weights, value, value) if enable_gqa else _product(query, weights, value)


def _grouped_product(query: Any, left: Any, group: Any, right: Any) -> Any:
    """Returns the product [..., heads, m, n] of matrices whose right operand is shared by groups of adjacent heads.

    The rows of all heads that share a key or value head form one matrix, so that the shared operand is not copied.

    Args:
        query: its shape gives the number of heads.
        left: [..., heads, m, k].
        group: key or value. Its shape gives the number of shared heads.
        right: [..., shared heads, k, n].
    """
    heads, shared, queries = query.shape[-3], group.shape[-3], query.shape[-2]
    is_known = isinstance(queries, int)  # an inferred size is undefined if there are no elements
    kept = [0] * (len(query.shape) - 3)
    rows = op.Reshape(left, op.Constant(value_ints=[*kept, shared, heads // shared * queries if is_known else -1, 0]))
    product = _product(query, rows, right)
    return op.Reshape(product, op.Constant(value_ints=[*kept, heads, queries if is_known else -1, 0]))


def _product(query: Any, left: Any, right: Any) -> Any:
    """Returns the matrix product of `left` and `right`.

    For float64 it uses Einsum, because ONNX Runtime would fuse the scale into a MatMul as float32.
    """
    return op.Einsum(left, right, equation=PRODUCT) if query.dtype == ir.DataType.DOUBLE else op.MatMul(left, right)


def _scale(query: Any, scale: float | None) -> Any:
    width = query.shape[-1]
    if scale is None and not isinstance(width, int):
        return op.Reciprocal(op.Sqrt(op.CastLike(op.Shape(query, start=-1), query)))
    return _constant(1 / math.sqrt(width) if scale is None else scale, query.dtype)


def _constant(number: float, dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor(number, dtype=dtype))


def _transposed(key: Any) -> Any:
    *outer, rows, columns = range(len(key.shape))
    return op.Transpose(key, perm=[*outer, columns, rows])


def _causal_mask(query: Any, key: Any) -> Any:
    """Returns the mask [queries, keys]: -inf above the diagonal, 0 elsewhere."""
    shape = op.Concat(op.Shape(query, start=-2, end=-1), op.Shape(key, start=-2, end=-1), axis=0)
    minus_infinity = op.ConstantOfShape(shape, value=ir.tensor([-math.inf], dtype=_comparable(query.dtype)))
    mask = op.Trilu(minus_infinity, op.Constant(value_int=1), upper=1)
    return mask if _comparable(query.dtype) == query.dtype else op.CastLike(mask, query)


def _comparable(dtype: ir.DataType) -> ir.DataType:
    """Returns the dtype in which a mask is applied: float32 for bfloat16, otherwise the given dtype.

    On CUDA, ONNX Runtime has bfloat16 kernels for products, but not for comparisons and selections. Its sources list
    the kernels in docs/OperatorKernels.md.
    """
    return ir.DataType.FLOAT if dtype == ir.DataType.BFLOAT16 else dtype


def _masked_softmax(scores: Any, mask: Any, dtype: ir.DataType) -> Any:
    """Returns softmax(scores + mask) over the last axis, with 0 wherever scores + mask is -inf.

    Therefore a row that is entirely -inf gives 0, not NaN. A NaN or +inf in a row gives NaN at its own position, and
    thus in the entire output of its query, as in PyTorch.

    Args:
        scores: [..., heads, queries, keys].
        mask: bool, in the dtype of the scores, or float32.
        dtype: the dtype of the scores.
    """
    # A number that differs from -inf in float32 may be -inf in float16.
    wide = mask.dtype if dtype.itemsize < mask.dtype.itemsize else _comparable(dtype)
    if wide != dtype:
        return op.CastLike(_masked_softmax(op.Cast(scores, to=wide), mask, wide), scores)
    if mask.dtype == ir.DataType.BOOL:
        mask = op.Where(mask, _constant(0.0, dtype), _constant(-math.inf, dtype))
    elif dtype != mask.dtype:
        mask = op.Cast(mask, to=dtype)
    masked = op.Add(scores, mask)
    is_hidden = op.Equal(masked, _constant(-math.inf, dtype))
    return op.Where(is_hidden, _constant(0.0, dtype), op.Softmax(masked, axis=-1))

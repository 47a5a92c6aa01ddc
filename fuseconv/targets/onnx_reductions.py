"""Replacements in plain PyTorch for reductions, sorts, searches and scatters with a wrong or missing ONNX translation.

Each function has the signature of the op. If the function returns NotImplemented, the op is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _extremum(op: Any) -> Callable[..., Any]:
    """Returns a replacement of amax or amin that lists all axes if none are given, as the exporter requires."""

    def reduce(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return NotImplemented if len(dim) or not x.dim() else op(x, list(range(x.dim())), keepdim)

    return reduce


def vector_norm(
    x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Lists all axes if none are given, because the exporter would reshape to a vector of unknown size."""
    if (dim is not None and len(dim)) or not x.dim():
        return NotImplemented
    return aten.linalg_vector_norm.default(x, order, list(range(x.dim())), keepdim, dtype=dtype)


def roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Gathers each element from its old position if a size is dynamic or 0.

    The exporter's translation divides by the size.
    """
    if all(isinstance(size, int) and size > 0 for size in x.shape):
        return NotImplemented
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = torch.scalar_tensor(x.shape[dim], dtype=torch.int64)
        taken = torch.arange(x.shape[dim]) - shift
        x = x.index_select(dim, torch.remainder(taken, torch.maximum(size, torch.ones_like(size))))
    return x


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the minimum and the maximum along `dim`, or of the whole tensor if `dim` is None."""
    axes = list(range(x.dim())) if dim is None else [dim]
    return x.amin(axes, keepdim), x.amax(axes, keepdim)


def _position(op: Any) -> Callable[..., Any]:
    """Returns a replacement of argmax or argmin for `keepdim` without `dim`, where the exporter's rank is wrong."""

    def reduce(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or not keepdim:
            return NotImplemented
        return op(x.reshape(-1), 0).reshape([1] * x.dim())

    return reduce


def any_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Tests whether the number of nonzero elements is positive, which is also correct for empty tensors.

    A uint8 input gives a uint8 result, as in PyTorch; all other dtypes give bool.
    """
    axes = list(range(x.dim())) if dim is None or dim == [] else dim
    found = (x != 0).to(torch.int64)
    result = (found.sum(axes, keepdim) if x.dim() else found) > 0
    return result.to(torch.uint8) if x.dtype == torch.uint8 else result


def all_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Tests whether the number of zeros is 0, which is also correct for empty tensors.

    A uint8 input gives a uint8 result, as in PyTorch; all other dtypes give bool.
    """
    axes = list(range(x.dim())) if dim is None or dim == [] else dim
    missing = (x == 0).to(torch.int64)
    result = (missing.sum(axes, keepdim) if x.dim() else missing) == 0
    return result.to(torch.uint8) if x.dtype == torch.uint8 else result


def _earlier(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Returns the elements for each cumulative result, and a mask of the elements up to the result's position.

    The elements are [..., size, size]: `dim` is moved to the end and repeated once per position. The mask is
    [size, size], and True at [i, j] if j <= i.
    """
    last = x.movedim(dim, -1)
    size = last.shape[-1]
    at = torch.arange(size)
    return last.unsqueeze(-2).expand(*last.shape[:-1], size, size), at[None, :] <= at[:, None]


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Returns the cumulative products along `dim`, in int64 for integers unless a dtype is given."""
    x = x.to(dtype or (x.dtype if x.dtype.is_floating_point else torch.int64))
    if not x.dim():
        return x.clone()
    values, earlier = _earlier(x, dim)
    return torch.where(earlier, values, torch.ones_like(values)).prod(-1).movedim(-1, dim)


def _cumulative(op: Any, least: float) -> Callable[..., Any]:
    def scan(x: Tensor, dim: int) -> Any:
        if not x.dim() or not x.dtype.is_floating_point:
            return NotImplemented
        values, earlier = _earlier(x, dim)
        best = op(torch.where(earlier, values, torch.full_like(values, least)), [-1], True)
        at = torch.arange(values.shape[-1])
        last = torch.where(earlier & (values == best), at, torch.full_like(at, -1)).amax(-1)
        return best.squeeze(-1).movedim(-1, dim), last.movedim(-1, dim)

    return scan


def sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sorts with `aten.sort`, which the exporter translates to TopK, and TopK is stable."""
    return aten.sort.default(x, dim, descending)  # type: ignore[no-any-return]


def argsort_stable(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    """Returns the indices of `sort_stable`."""
    return sort_stable(x, dim=dim, descending=descending)[1]


def kthvalue(x: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the largest of the k smallest elements along `dim`, and its index."""
    values, indices = x.topk(k, dim, largest=False)
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the lower median along `dim`, and its index."""
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def median_of_all(x: Tensor) -> Tensor:
    """Returns the lower median of the whole tensor."""
    return median(x.reshape(-1), 0)[0]


def searchsorted(
    boundaries: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Counts the boundaries that are less than each value or, with `right`, less than or equal to it.

    For NaN, counts all boundaries.
    """
    if sorter is not None:
        return NotImplemented
    rows = boundaries if boundaries.dim() == 1 else boundaries.unsqueeze(-2)
    value = x.unsqueeze(-1)
    reached = rows > value if right or side == "right" else rows >= value
    return (~reached).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Counts, for each value, the boundaries below this value, with `searchsorted`."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


def isin(elements: Tensor, tests: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Returns elementwise whether any test value equals the element, or the opposite with `invert`."""
    found = any_of(elements.unsqueeze(-1) == tests.reshape(-1), [-1])
    return ~found if invert else found


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Returns the p-norm distance between each row of `a` and each row of `b`."""
    distance: Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
    return distance


def scatter_mean(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Computes scatter_reduce with `mean` as a sum divided by a count, because ONNX has no such reduction."""
    if reduce != "mean" or not x.dtype.is_floating_point:
        return NotImplemented
    ones = torch.ones_like(source)
    count = (torch.ones_like(x) if include_self else torch.zeros_like(x)).scatter_add(dim, index, ones)
    total = (x if include_self else torch.zeros_like(x)).scatter_add(dim, index, source)
    return torch.where(count == 0, x, total / count.clamp(min=1))


def scatter_reduced(x: Tensor, dim: int, index: Tensor, source: Any, *, reduce: str) -> Tensor:
    """Computes `scatter` with `reduce`, which is the older form of scatter_reduce."""
    values = source if isinstance(source, Tensor) else torch.full_like(index, source, dtype=x.dtype)
    return x.scatter_reduce(dim, index, values, {"add": "sum", "multiply": "prod"}[reduce])


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Writes one number wherever a bool mask is True, if the mask does not cover the first axis."""
    masks = [(at, index) for at, index in enumerate(indices) if index is not None]
    if len(masks) != 1 or masks[0][1].dtype != torch.bool or values.numel() != 1 or accumulate or not masks[0][0]:
        return NotImplemented
    at, mask = masks[0]
    after = x.dim() - at - mask.dim()
    return torch.where(mask.reshape([*mask.shape, *[1] * after]), values.reshape(()).to(x.dtype), x)


def repeat_interleave(x: Tensor, repeats: Tensor, dim: int | None = None, *, output_size: Any = None) -> Tensor:
    """Gathers each output element from its source element.

    The index of the source is the number of source elements whose repeats end at or before the output position.
    """
    if dim is None:
        x, dim = x.reshape(-1), 0
    if output_size is None:
        positions: Tensor = aten.repeat_interleave.Tensor(repeats)
    else:
        ends = repeats.expand(x.shape[dim]).cumsum(0)
        positions = (ends[None, :] <= torch.arange(output_size)[:, None]).sum(1)
    return x.index_select(dim, positions)


def hamming_window(
    length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> Tensor:
    """Computes alpha - beta cos(2 pi n / N) with the given alpha, because the exporter uses another alpha."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    steps = max(length if periodic else length - 1, 1)
    angle = torch.arange(length, dtype=dtype) * (2 * math.pi / steps)
    return alpha - beta * torch.cos(angle) if length > 1 else torch.ones(length, dtype=dtype)


SPELLINGS: Mapping[Any, Callable[..., Any]] = {
    aten.roll.default: roll,
    aten.amax.default: _extremum(aten.amax.default),
    aten.amin.default: _extremum(aten.amin.default),
    aten.aminmax.default: aminmax,
    aten.linalg_vector_norm.default: vector_norm,
    aten.argmax.default: _position(aten.argmax.default),
    aten.argmin.default: _position(aten.argmin.default),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), any_of),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), all_of),
    aten.cumprod.default: cumprod,
    aten.cummax.default: _cumulative(aten.amax.default, -math.inf),
    aten.cummin.default: _cumulative(aten.amin.default, math.inf),
    aten.sort.stable: sort_stable,
    aten.argsort.stable: argsort_stable,
    aten.kthvalue.default: kthvalue,
    aten.median.dim: median,
    aten.median.default: median_of_all,
    aten.searchsorted.Tensor: searchsorted,
    aten.bucketize.Tensor: bucketize,
    aten.isin.Tensor_Tensor: isin,
    aten.cdist.default: cdist,
    aten.scatter_reduce.two: scatter_mean,
    aten.scatter.reduce: scatter_reduced,
    aten.scatter.value_reduce: scatter_reduced,
    aten.index_put.default: index_put,
    aten.repeat_interleave.self_Tensor: repeat_interleave,
    aten.hamming_window.default: hamming_window,
    aten.hamming_window.periodic: hamming_window,
    aten.hamming_window.periodic_alpha: hamming_window,
    aten.hamming_window.periodic_alpha_beta: hamming_window,
}

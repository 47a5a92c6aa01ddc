"""Replacements in plain PyTorch for pooling and products whose ONNX translation is wrong or missing.

Each function has the signature of the op. If the function returns NotImplemented, the op is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def avg_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Multiplies the average by window / divisor_override, because the exporter ignores divisor_override."""
    if divisor_override is None or ceil_mode:
        return NotImplemented
    window = kernel_size[0] * kernel_size[-1]
    return aten.avg_pool2d.default(x, kernel_size, stride, padding) * (window / divisor_override)


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[Any]) -> Any:
    """Averages over windows whose sizes may differ, first along depth, then height, then width."""
    for axis, count in zip(range(x.dim() - len(output_size), x.dim()), output_size, strict=True):
        size = x.shape[axis]
        if count == 1:
            x = x.mean(axis, keepdim=True)
        elif isinstance(size, int) and isinstance(count, int):
            windows = [(at * size // count, -(-(at + 1) * size // count)) for at in range(count)]
            x = torch.cat([x.narrow(axis, low, high - low).mean(axis, keepdim=True) for low, high in windows], axis)
        else:
            x = aten._adaptive_avg_pool3d.default(x, [*x.shape[-3:axis], *output_size[axis - x.dim() :]])
    return x


def einsum(equation: str, tensors: Sequence[Tensor], path: Sequence[int] | None = None) -> Any:
    """Computes an einsum with PyTorch's decomposition into permutations and matrix products.

    ONNX Runtime's Einsum crashes the process (SIGFPE) if some axes have size 0, and does not support bfloat16.
    """
    return aten.einsum.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, equation, tensors, path=path)


SPELLINGS: Mapping[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: avg_pool2d,
    aten.adaptive_avg_pool3d.default: adaptive_avg_pool3d,
    aten.einsum.default: einsum,
}

"""Roundings that tests repeat: of factors to TF32, and of a layer whose result in 16 bits is rounded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor


def to_tf32(x: Tensor) -> Tensor:
    """Returns a float32 tensor whose elements are rounded to the nearest numbers with 11 significant bits."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(x.dtype)


def rounded_twice(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: Callable[[Tensor], Tensor] | None,
    residual: Tensor | None,
    form: str,
    dtype: torch.dtype,
) -> Iterator[Tensor]:
    """Computes a layer in f64, except that one intermediate value and the result are rounded to a dtype.

    The first kernel computes the product, and adds none, some or all of what is added before the activation; or it also
    applies the activation, and the second adds the residual. cuBLAS, for example, rounds the sum of the product and the
    residual before it adds the bias, where its kernel for unaligned operands has no epilogue.

    Args:
        x: f64 [M, K].
        weight: f64 [N, K]; [2 N, K] if the form is gated: the gates and the ups.
        bias: f64 [N] or [2 N], or None.
        act: the activation, which computes f64 in f64; None if there is none, so that the residual may be added first.
        residual: f64 [M, N], or None.
        form: "plain", "residual", "residual first" or "gated".
        dtype: f16 or bf16.
    """
    product, before = x @ weight.T, [] if bias is None else [bias]
    first = form == "residual first" or act is None
    if residual is not None and first:
        before.append(residual)

    def activated(z: Tensor) -> Tensor:
        if form != "gated":
            return z if act is None else act(z)
        gates, ups = z.chunk(2, -1)
        return (gates if act is None else act(gates)) * ups

    def end(y: Tensor) -> Tensor:
        return (y if residual is None or first else y + residual).to(dtype)

    for count in range(len(before) + 1):
        for early in combinations(range(len(before)), count):
            z = sum((before[at] for at in early), product).to(dtype).double()
            yield end(activated(sum((one for at, one in enumerate(before) if at not in early), z)))
    if residual is not None and not first:
        yield end(activated(sum(before, product)).to(dtype).double())

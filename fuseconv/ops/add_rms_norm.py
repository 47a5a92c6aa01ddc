"""add_rms_norm: the RMS norm of x + residual, and the sum itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.autocast import single
from fuseconv.ops.norm_backward import sum_norm_gradient
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, keep_sum: bool = True
) -> tuple[Tensor, Tensor]:
    """rms_norm(s) over the last dim, and s itself, where s = x + residual.

    Args:
        x: [..., C].
        residual: [..., C], with the shape and dtype of x.
        weight: [C], or None for 1.
        eps: added to the mean of squares.
        keep_sum: whether to return s.

    Returns:
        The RMS norm of s, [..., C], and s, [..., C]. If `keep_sum` is False, the second tensor is empty.

    Examples:
        >>> x, residual = torch.tensor([[3.0, -3.0]]), torch.tensor([[-1.0, 1.0]])
        >>> fuseconv.ops.add_rms_norm(x, residual, None, 0.0)
        (tensor([[ 1., -1.]]), tensor([[ 2., -2.]]))
    """
    s = x + residual
    return functional.rms_norm(s, s.shape[-1:], weight, eps), s if keep_sum else s.new_empty((0,))


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    x, residual, weight = draw(2, 5, 48), draw(2, 5, 48), draw(48)
    rows = draw(3, 48)
    return [
        *(
            Sample(f"columns_{size}", (draw(3, size), draw(3, size), draw(size), 1e-5))
            for size in (1, 7, 384, 1024, 3073)
        ),
        Sample("no_sum", (x, residual, weight, 1e-5, False)),
        Sample("no_weight", (x, residual, None, 1e-12)),
        Sample("one_dim", (draw(48), draw(48), weight, 1e-5)),
        Sample("no_rows", (draw(0, 48), draw(0, 48), weight, 1e-5)),
        Sample("threads", (draw(301, 48), draw(301, 48), weight, 1e-5)),
        Sample("zeros", (torch.zeros_like(x), torch.zeros_like(x), weight, 1e-5)),
        Sample("same_tensor", (rows, rows, weight, 1e-5)),
        Sample("permuted", (draw.permuted(4, 6, 48), draw.permuted(4, 6, 48), weight, 1e-5)),
        Sample("one_permuted", (draw(4, 48), draw.permuted(4, 48), weight, 1e-5)),
        Sample("strided", (draw.strided(4, 48), draw.strided(4, 48), draw.strided(48), 1e-5)),
        Sample("padded", (draw.padded(4, 48), draw.padded(4, 48), weight, 1e-5, False)),
        Sample("unaligned", (draw.unaligned(4, 48), draw.unaligned(4, 48), draw.unaligned(48), 1e-5)),
        Sample("expanded", (draw(1, 48).expand(4, 48), draw(4, 48), weight, 1e-5)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(4, 6), draw(6)
    return [
        Sample("residual", (x, draw(6), weight, 1e-5), matches=r"residual must have the shape of x, \[4, 6\]"),
        Sample("weight", (x, x, draw(4), 1e-5), matches=r"weight must have the shape \[6\].*but has \[4\]"),
        Sample("scalar", (draw(), draw(), None, 1e-5), matches="x must have at least one dim"),
        Sample("dtypes", (x, x.half(), None, 1e-5), matches="residual and x must have the same dtype"),
    ]


add_rms_norm = Op("add_rms_norm", reference, samples, errors, sum_norm_gradient(centred=False), single, decomposes=True)

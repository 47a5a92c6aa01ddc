"""rms_norm: RMS norm over the last dim, followed by an activation."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.autocast import single
from fuseconv.ops.norm_backward import norm_gradient
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(x: Tensor, weight: Tensor | None, eps: float, act: str = "none") -> Tensor:
    """act(x / sqrt(mean(x^2) + eps) * weight) over the last dim.

    Args:
        x: [..., C].
        weight: [C], or None for 1.
        eps: added to the mean of squares.
        act: the name of the activation.

    Returns:
        A tensor [..., C].

    Examples:
        >>> fuseconv.ops.rms_norm(torch.tensor([[2.0, -2.0]]), None, 0.0)
        tensor([[ 1., -1.]])
    """
    return activate(functional.rms_norm(x, x.shape[-1:], weight, eps), act)


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    weight = draw(48)
    return [
        *(
            Sample(f"columns_{columns}", (draw(3, columns), draw(columns), 1e-5))
            for columns in (1, 7, 64, 384, 1024, 3073, 4096)
        ),
        *(Sample(act, (draw(2, 5, 48, scale=3), weight, 1e-5, act)) for act in ACTIVATIONS),
        Sample("no_weight", (draw(4, 48), None, 1e-12)),
        Sample("one_dim", (draw(48), weight, 1e-5)),
        Sample("no_rows", (draw(0, 48), weight, 1e-5)),
        Sample("threads", (draw(301, 48), weight, 1e-5)),
        Sample("far_from_zero", (draw(4, 48) + 100, weight, 1e-5)),
        Sample("zeros", (torch.zeros_like(draw(4, 48)), weight, 1e-5)),
        Sample("permuted", (draw.permuted(4, 6, 48), weight, 1e-5)),
        Sample("swapped_dims", (draw(3, 2, 48).transpose(0, 1), weight, 1e-5)),
        Sample("across", (draw.across(2, 37, 48), weight, 1e-5)),
        Sample("strided", (draw.strided(4, 48), draw.strided(48), 1e-5, "gelu_tanh")),
        Sample("padded", (draw.padded(4, 48), weight, 1e-5)),
        Sample("unaligned", (draw.unaligned(4, 48), draw.unaligned(48), 1e-5)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(4, 6), draw(6)
    return [
        Sample("weight", (x, draw(4), 1e-5), matches=r"weight must have the shape \[6\].*but has \[4\]"),
        Sample("scalar", (draw(), None, 1e-5), matches="x must have at least one dim"),
        Sample("act", (x, None, 1e-5, "celu"), matches="unknown activation 'celu'"),
        Sample("dtypes", (x, weight.half(), 1e-5), matches="weight and x must have the same dtype"),
    ]


def _without_act(arguments: SimpleNamespace) -> Tensor:
    result: Tensor = rms_norm(arguments.x, arguments.weight, arguments.eps)
    return result


rms_norm = Op(
    "rms_norm",
    reference,
    samples,
    errors,
    norm_gradient(centred=False, before_act=_without_act),
    single,
    decomposes=True,
)

"""gated_act: act(gate) * up, where gate and up are the halves of z. This is the elementwise part of a gated layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.gated_act_backward import gated_act_backward
from fuseconv.ops.gradient import Gradient
from fuseconv.ops.layout import channels_last
from fuseconv.ops.like import without_activation
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(z: Tensor, act: str) -> Tensor:
    """act(gate) * up, where gate and up are the first and the second half of z along the last dim.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    Args:
        z: [..., 2H]. The first H columns are the gate, the last H columns are up.
        act: the activation of the gate.

    Returns:
        A tensor [..., H].

    Examples:
        >>> fuseconv.ops.gated_act(torch.tensor([[1.0, -2.0, 3.0, 4.0]]), "relu")
        tensor([[3., 0.]])
    """
    gate, up = z.tensor_split(2, -1)
    return activate(gate, act) * up


def _keep(a: SimpleNamespace, _: tuple[Tensor, ...]) -> dict[str, Any]:
    return {"z": a.z, "act": a.act}


def _backward(kept: SimpleNamespace, _: frozenset[str], grad: Tensor) -> dict[str, Tensor]:
    return {"z": gated_act_backward(grad, kept.z, kept.act)}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [
        *(Sample(act, (draw(2, 5, 48), act)) for act in ACTIVATIONS),
        Sample("one_dim", (draw(14), "silu")),
        Sample("no_rows", (draw(0, 14), "gelu")),
        Sample("no_columns", (draw(3, 0), "relu")),
        Sample("odd_half", (draw(31, 34), "silu")),
        Sample("threads", (draw(17, 8198), "gelu_tanh")),
        Sample("permuted", (draw.permuted(4, 6, 48), "silu")),
        Sample("across", (draw.across(2, 131, 70), "silu")),
        Sample("channels_last", (channels_last(draw(2, 3, 4, 6)), "gelu")),
        Sample("strided", (draw.strided(4, 48), "tanh")),
        Sample("padded", (draw.padded(40, 48), "silu")),
        Sample("expanded", (draw(1, 48).expand(4, 48), "gelu")),
        Sample("unaligned", (draw.unaligned(9, 48), "silu")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    z = draw(4, 6)
    return [
        Sample("odd", (draw(4, 5), "silu"), matches=r"z must have the shape \[..., 2H\], .* but has \[4, 5\]"),
        Sample("scalar", (draw(), "silu"), matches="z must have at least one dim"),
        Sample("act", (z, "swish"), matches="unknown activation 'swish'"),
        Sample("complex", (torch.complex(z, z), "silu"), matches="z must be float64, float32, float16 or bfloat16"),
    ]


gated_act = Op(
    "gated_act",
    reference,
    samples,
    errors,
    Gradient(_keep, _backward),
    decomposes=True,
    like=without_activation(reference),
)

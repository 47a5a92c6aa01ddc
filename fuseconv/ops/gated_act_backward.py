"""gated_act_backward: the gradient of gated_act with respect to its operand."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseconv.ops.activation import ACTIVATIONS, FROM_RESULT, activate, activate_backward
from fuseconv.ops.layout import channels_last
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(grad: Tensor, z: Tensor, act: str) -> Tensor:
    """The gradient of act(gate) * up with respect to z, where gate and up are the halves of z along the last dim.

    Args:
        grad: [..., H], the gradient with respect to act(gate) * up.
        z: [..., 2H], with the dtype of `grad`.
        act: the activation of the gate.

    Returns:
        The gradient, [..., 2H].

    Examples:
        >>> fuseconv.ops.gated_act_backward(torch.ones(1, 2), torch.tensor([[1.0, 2.0, 3.0, 4.0]]), "relu")
        tensor([[3., 4., 1., 2.]])
    """
    gate, up = z.tensor_split(2, -1)
    value = activate(gate, act)
    before = activate_backward(grad * up, value if act in FROM_RESULT else gate, act)
    return torch.cat([before, grad * value], -1).contiguous()


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [
        *(Sample(act, (draw(2, 5, 24), draw(2, 5, 48), act)) for act in ACTIVATIONS),
        Sample("one_dim", (draw(7), draw(14), "silu")),
        Sample("no_rows", (draw(0, 7), draw(0, 14), "gelu")),
        Sample("no_columns", (draw(3, 0), draw(3, 0), "relu")),
        Sample("odd_half", (draw(31, 17), draw(31, 34), "silu")),
        Sample("threads", (draw(17, 4099), draw(17, 8198), "gelu_tanh")),
        Sample("permuted", (draw.permuted(4, 6, 24), draw.permuted(4, 6, 48), "silu")),
        Sample("channels_last", (channels_last(draw(2, 3, 4, 6)), channels_last(draw(2, 3, 4, 12)), "silu")),
        Sample("strided", (draw.strided(4, 24), draw.strided(4, 48), "tanh")),
        Sample("padded", (draw.padded(40, 24), draw.padded(40, 48), "silu")),
        Sample("expanded", (draw(1, 1).expand(4, 24), draw(4, 48), "gelu")),
        Sample("unaligned", (draw.unaligned(9, 24), draw.unaligned(9, 48), "silu")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    grad, z = draw(4, 3), draw(4, 6)
    return [
        Sample("odd", (grad, draw(4, 7), "silu"), matches=r"z must have the shape \[..., 2H\], .* but has \[4, 7\]"),
        Sample("sizes", (z, z, "silu"), matches=r"grad must have the shape of half of z, \[4, 3\], but has \[4, 6\]"),
        Sample("scalar", (draw(), draw(), "silu"), matches="z must have at least one dim"),
        Sample("act", (grad, z, "swish"), matches="unknown activation 'swish'"),
        Sample("dtypes", (grad.half(), z, "silu"), matches="z and grad must have the same dtype"),
    ]


gated_act_backward = Op("gated_act_backward", reference, samples, errors)

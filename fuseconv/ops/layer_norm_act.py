"""layer_norm_act: layer norm over the last dim, followed by an activation."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.autocast import single
from fuseconv.ops.like import without_activation
from fuseconv.ops.norm_backward import norm_gradient
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, act: str) -> Tensor:
    """act(layer_norm(x)) over the last dim.

    Args:
        x: [..., C].
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: added to the variance.
        act: the name of the activation.

    Returns:
        A tensor [..., C].

    Examples:
        >>> fuseconv.ops.layer_norm_act(torch.tensor([[1.0, 3.0]]), None, None, 0.0, "relu")
        tensor([[0., 1.]])
    """
    return activate(functional.layer_norm(x, x.shape[-1:], weight, bias, eps), act)


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    weight, bias = draw(48), draw(48)
    return [
        *(
            Sample(f"columns_{columns}", (draw(3, columns), draw(columns), draw(columns), 1e-5, "relu"))
            for columns in (1, 7, 64, 384, 1024, 3073, 4096)
        ),
        *(Sample(act, (draw(2, 5, 48, scale=3), weight, bias, 1e-5, act)) for act in ACTIVATIONS),
        Sample("no_affine", (draw(4, 48), None, None, 1e-12, "gelu")),
        Sample("no_bias", (draw(4, 48), weight, None, 1e-5, "relu")),
        Sample("no_weight", (draw(4, 48), None, bias, 1e-5, "relu")),
        Sample("one_dim", (draw(48), weight, bias, 1e-5, "silu")),
        Sample("no_rows", (draw(0, 48), weight, bias, 1e-5, "relu")),
        Sample("threads", (draw(301, 48), weight, bias, 1e-5, "gelu")),
        Sample("far_from_zero", (draw(4, 48) + 100, weight, bias, 1e-5, "relu")),
        Sample("constant", (torch.ones_like(draw(4, 48)), weight, bias, 1e-5, "relu")),
        Sample("permuted", (draw.permuted(4, 6, 48), weight, bias, 1e-5, "relu")),
        Sample("swapped_dims", (draw(3, 2, 48).transpose(0, 1), weight, bias, 1e-5, "relu")),
        Sample("across", (draw.across(2, 40, 48), weight, bias, 1e-5, "gelu")),
        Sample("odd_across", (draw.across(2, 37, 45), draw(45), draw(45), 1e-5, "relu")),
        Sample("strided", (draw.strided(4, 48), draw.strided(48), draw.strided(48), 1e-5, "gelu_tanh")),
        Sample("padded", (draw.padded(4, 48), weight, bias, 1e-5, "tanh")),
        Sample("unaligned", (draw.unaligned(4, 48), draw.unaligned(48), draw.unaligned(48), 1e-5, "relu")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(4, 6), draw(6)
    return [
        Sample("weight", (x, draw(4), None, 1e-5, "relu"), matches=r"weight must have the shape \[6\].*but has \[4\]"),
        Sample("bias", (x, weight, draw(4), 1e-5, "relu"), matches=r"bias must have the shape \[6\].*but has \[4\]"),
        Sample("scalar", (draw(), None, None, 1e-5, "relu"), matches="x must have at least one dim"),
        Sample("act", (x, None, None, 1e-5, ""), matches="unknown activation ''"),
        Sample("dtypes", (x, weight.half(), None, 1e-5, "relu"), matches="weight and x must have the same dtype"),
    ]


def _without_act(arguments: SimpleNamespace) -> Tensor:
    result: Tensor = layer_norm_act(arguments.x, arguments.weight, arguments.bias, arguments.eps, "none")
    return result


layer_norm_act = Op(
    "layer_norm_act",
    reference,
    samples,
    errors,
    norm_gradient(centred=True, before_act=_without_act),
    single,
    decomposes=True,
    like=without_activation(reference),
)

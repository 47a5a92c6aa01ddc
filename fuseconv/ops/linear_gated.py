"""linear_gated: act(x Wg^T + bg) * (x Wu^T + bu), the first half of a gated feed-forward layer (SwiGLU, GEGLU, GLU)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.autocast import lower
from fuseconv.ops.gated_act import gated_act
from fuseconv.ops.gradient import by_reference
from fuseconv.ops.like import without_activation
from fuseconv.ops.linear_act import linear_act
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, act: str = "silu") -> Tensor:
    """act(gate) * up, where [gate, up] = x weight^T + bias, split in halves along the last dim.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    Args:
        x: [..., K].
        weight: [2H, K], with the dtype of x. The first H rows compute the gate, the last H rows up.
        bias: [2H], or None for 0.
        act: the activation of the gate.

    Returns:
        A tensor [..., H].

    Examples:
        >>> fuseconv.ops.linear_gated(torch.tensor([[3.0, 2.0]]), torch.eye(2), act="relu")
        tensor([[6.]])
    """
    product = functional.linear(x, weight, bias)
    width = (
        weight.shape[0] // 2
    )  # Both halves use the same formula, because ONNX function bodies are captured for any number of rows.
    return activate(product.narrow(-1, 0, width), act) * product.narrow(-1, width, width)


def _unfused(a: SimpleNamespace) -> Tensor:
    """Computes the result with two ops, because the gradient needs the matrix product, which the fused op discards."""
    y: Tensor = gated_act(linear_act(a.x, a.weight, a.bias), a.act)
    return y


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    x, weight, bias = draw(5, 24), draw(34, 24, scale=0.3), draw(34)
    return [
        *(Sample(act, (x, weight, bias, act)) for act in ACTIVATIONS),
        Sample("bare", (x, weight)),
        Sample("act_without_bias", (x, weight, None, "gelu")),
        Sample("one_dim", (draw(24), weight, bias)),
        Sample("three_dims", (draw(2, 3, 24), weight, bias, "gelu")),
        Sample("threads", (draw(300, 24), draw(602, 24, scale=0.3), draw(602), "gelu_tanh")),
        Sample("one_element", (draw(1, 1), draw(2, 1), draw(2), "sigmoid")),
        Sample("no_rows", (draw(0, 24), weight, bias)),
        Sample("no_inner", (draw(3, 0), draw(4, 0), draw(4))),
        Sample("no_inner_no_bias", (draw(3, 0), draw(4, 0), None, "sigmoid")),
        Sample("no_outputs", (draw(3, 4), draw(0, 4), draw(0))),
        Sample("weight_transposed", (x, draw.permuted(34, 24), bias)),
        Sample("weight_strided", (x, draw.strided(34, 24), draw.strided(34), "relu")),
        Sample("x_padded_rows", (draw.padded(5, 24), weight, bias)),
        Sample("x_permuted", (draw.permuted(2, 3, 24), weight, bias)),
        Sample("x_expanded", (draw(1, 24).expand(5, 24), weight, bias)),
        *(
            Sample(f"rows_of_16_bytes_{act}", (draw(33, 64), draw(144, 64, scale=0.2), draw(144), act))
            for act in ACTIVATIONS
        ),
        Sample("unaligned", (draw.unaligned(5, 24), draw.unaligned(34, 24), draw.unaligned(34))),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(5, 24), draw(34, 24)
    waves = torch.complex(x, x), torch.complex(weight, weight)
    shape = r"weight must have the shape \[2H, 24\], gates before ups, .* but has "
    return [
        Sample("inner", (x, draw(34, 23)), matches=shape + r"\[34, 23\]"),
        Sample("odd", (x, draw(33, 24)), matches=shape + r"\[33, 24\]"),
        Sample("weight_rank", (x, draw(24)), matches=shape + r"\[24\]"),
        Sample("scalar", (draw(), weight), matches="x must have at least one dim"),
        Sample("bias", (x, weight, draw(17)), matches=r"bias must have the shape \[34\].*but has \[17\]"),
        Sample("act", (x, weight, None, "swish"), matches="unknown activation 'swish'"),
        Sample("dtypes", (x, weight.half()), matches="weight and x must have the same dtype"),
        Sample("bias_dtype", (x, weight, draw(34).half()), matches="bias and x must have the same dtype"),
        Sample("complex", waves, matches="x must be float64, float32, float16 or bfloat16"),
    ]


_gradient = replace(by_reference(reference), unfused=_unfused)
linear_gated = Op(
    "linear_gated", reference, samples, errors, _gradient, autocast=lower, like=without_activation(reference)
)

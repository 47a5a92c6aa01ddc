"""linear_act: act(x weight^T + bias) + residual."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, activate
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, act: str = "none"
) -> Tensor:
    """act(x weight^T + bias) + residual; x [..., K], weight [N, K], bias [N], residual [..., N]."""
    y = activate(functional.linear(x, weight, bias), act)
    return y if residual is None else y + residual


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Calls that the op must serve."""
    draw = Draw(device, dtype)
    x, weight, bias, residual = draw(5, 24), draw(17, 24, scale=0.3), draw(17), draw(5, 17)
    return [
        *(Sample(act, (x, weight, bias, None, act)) for act in ACTIVATIONS),
        *(Sample(f"{act}_residual", (x, weight, bias, residual, act)) for act in ACTIVATIONS),
        Sample("bare", (x, weight)),
        Sample("residual_without_bias", (x, weight), {"residual": residual}),
        Sample("act_without_bias", (x, weight, None, None, "relu")),
        Sample("one_dim", (draw(24), weight, bias, draw(17), "silu")),
        Sample("three_dims", (draw(2, 3, 24), weight, bias, draw(2, 3, 17), "gelu")),
        Sample("threads", (draw(300, 24), draw(301, 24, scale=0.3), draw(301), draw(300, 301), "gelu")),
        Sample("one_element", (draw(1, 1), draw(1, 1), draw(1), draw(1, 1), "tanh")),
        Sample("no_rows", (draw(0, 24), weight, bias, draw(0, 17), "gelu")),
        Sample("no_inner", (draw(3, 0), draw(4, 0), draw(4), None, "relu")),
        Sample("no_inner_no_bias", (draw(3, 0), draw(4, 0), None, None, "sigmoid")),
        Sample("no_outputs", (draw(3, 4), draw(0, 4), draw(0), None, "relu")),
        Sample("weight_transposed", (x, draw.permuted(17, 24), bias, None, "gelu")),
        Sample("weight_strided", (x, draw.strided(17, 24), draw.strided(17), None, "relu")),
        Sample("x_padded_rows", (draw.padded(5, 24), weight, bias, residual, "relu")),
        Sample("x_permuted", (draw.permuted(2, 3, 24), weight, bias, None, "gelu")),
        Sample("x_swapped_dims", (draw(3, 2, 24).transpose(0, 1), weight, bias, None, "gelu")),
        Sample("x_expanded", (draw(1, 24).expand(5, 24), weight, bias, None, "silu")),
        Sample("residual_permuted", (x, weight, bias, draw.permuted(5, 17), "gelu_tanh")),
        Sample("unaligned", (draw.unaligned(5, 24), draw.unaligned(17, 24), draw.unaligned(17), None, "gelu")),
    ]


def errors(device: str) -> list[Sample]:
    """Calls that the op must refuse."""
    draw = Draw(device, torch.float32)
    x, weight = draw(5, 24), draw(17, 24)
    waves = torch.complex(x, x), torch.complex(weight, weight)
    return [
        Sample("inner", (x, draw(17, 23)), matches=r"weight must have the shape \[N, 24\].*but has \[17, 23\]"),
        Sample("weight_rank", (x, draw(24)), matches=r"weight must have the shape \[N, 24\].*but has \[24\]"),
        Sample("scalar", (draw(), weight), matches="x must have at least one dim"),
        Sample("bias", (x, weight, draw(24)), matches=r"bias must have the shape \[17\].*but has \[24\]"),
        Sample("residual", (x, weight, None, x), matches=r"residual must have the shape .*\[5, 17\].*has \[5, 24\]"),
        Sample("act", (x, weight, None, None, "GELU"), matches="unknown activation 'GELU'"),
        Sample("dtypes", (x, weight.half()), matches="weight and x must have the same dtype"),
        Sample("bias_dtype", (x, weight, draw(17).half()), matches="bias and x must have the same dtype"),
        Sample("complex", waves, matches="x must be float64, float32, float16 or bfloat16"),
    ]


linear_act = Op("linear_act", reference, samples, errors)

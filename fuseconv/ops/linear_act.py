"""linear_act: a linear, its bias, a residual and an activation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, FROM_RESULT, activate
from fuseconv.ops.activation_backward import activation_backward, as_rows
from fuseconv.ops.autocast import lower
from fuseconv.ops.gradient import Gradient
from fuseconv.ops.like import without_activation
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    act: str = "none",
    backend: str = "auto",  # noqa: ARG001  # selects a kernel, not a result
    tf32: bool = False,  # noqa: ARG001  # only float32 on CUDA has this choice
    residual_first: bool = False,
) -> Tensor:
    """act(x weight^T + bias) + residual, or act(x weight^T + bias + residual).

    Args:
        x: [..., K].
        weight: [N, K], with the dtype of x.
        bias: [N], or None for 0.
        residual: [..., N], or None for 0.
        act: the name of the activation.
        backend: the implementation of the matrix product on CUDA: "cublaslt", "sm90", "cublas", "aten", "sm80",
            "tf32x3", or "auto", which selects the fastest implementation for the shape.
        tf32: whether float32 matrix products may use TF32 on CUDA.
        residual_first: whether the residual is added before the activation. If False, it is added after.

    Returns:
        A tensor [..., N].

    Examples:
        >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> fuseconv.ops.linear_act(x, weight, act="relu")
        tensor([[3., 0.]])
    """
    y = functional.linear(x, weight, bias)
    if residual is None or not residual_first:
        y = activate(y, act)
        return y if residual is None else y + residual
    return activate(y + residual, act)


def _unfused(a: SimpleNamespace) -> Tensor | None:
    """Computes the result with several ops, or returns None if the gradient can be computed from the fused op.

    The gradient may require an intermediate value that the fused op does not return: the activation's input or, if
    a residual is added to it, the activation's result.
    """
    if a.act == "none" or (a.act in FROM_RESULT and (a.residual is None or a.residual_first)):
        return None
    if a.residual_first:
        return activate(linear_act(a.x, a.weight, a.bias, a.residual, "none", a.backend, a.tf32), a.act)
    inner = a.act if a.act in FROM_RESULT else "none"
    y = linear_act(a.x, a.weight, a.bias, None, inner, a.backend, a.tf32)
    y = y if inner == a.act else activate(y, a.act)
    return y if a.residual is None else y + a.residual


def _keep(a: SimpleNamespace, results: tuple[Tensor, ...]) -> dict[str, Any]:
    y = None if a.act == "none" else results[0]
    return {"x": a.x, "weight": a.weight, "y": y, "act": a.act, "residual_first": a.residual_first}


LARGE = 512
"""If all three sizes of a matrix product are at least this number, copying its operands is cheap compared with the
product."""


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. Uses linear_act for large float32 products on CUDA, unless torch may use TF32.

    linear_act's Tensor Core kernels need both operands contiguous along the summed axis, so the operands are copied.
    """
    f32 = a.is_cuda and a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    if f32 and min(*a.shape, b.shape[1]) >= LARGE:
        product: Tensor = linear_act(a.contiguous(), b.t().contiguous())
        return product
    return a @ b


def _backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> dict[str, Tensor]:
    grad = grad.contiguous()
    product = grad
    gradients = {}
    if kept.act != "none":
        product, gradients["bias"] = activation_backward(grad, kept.y, kept.act, "bias" in needed)
    gradients["residual"] = product if kept.residual_first else grad
    rows = as_rows(product)
    if kept.act == "none" and "bias" in needed:
        gradients["bias"] = rows.sum(0)
    if "x" in needed:
        gradients["x"] = _product(rows, kept.weight).reshape(kept.x.shape)
    if "weight" in needed:
        gradients["weight"] = _product(rows.t(), as_rows(kept.x))
    return gradients


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    x, weight, bias, residual = draw(5, 24), draw(17, 24, scale=0.3), draw(17), draw(5, 17)
    return [
        *(Sample(act, (x, weight, bias, None, act)) for act in ACTIVATIONS),
        *(Sample(f"{act}_residual", (x, weight, bias, residual, act)) for act in ACTIVATIONS),
        *(Sample(f"{act}_of_sum", (x, weight, bias, residual, act), {"residual_first": True}) for act in ACTIVATIONS),
        Sample("of_sum_without_bias", (x, weight, None, residual, "relu"), {"residual_first": True}),
        Sample("first_without_residual", (x, weight, bias, None, "gelu"), {"residual_first": True}),
        Sample("slope", (x, weight, bias, None, "leaky_relu(0.2)")),
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
        Sample("x_across", (draw.across(2, 40, 24), weight, bias, None, "gelu")),
        Sample("x_across_odd", (draw.across(2, 40, 30), draw(17, 30, scale=0.3), bias, None, "gelu")),
        Sample("x_permuted", (draw.permuted(2, 3, 24), weight, bias, None, "gelu")),
        Sample("x_swapped_dims", (draw(3, 2, 24).transpose(0, 1), weight, bias, None, "gelu")),
        Sample("x_expanded", (draw(1, 24).expand(5, 24), weight, bias, None, "silu")),
        Sample("residual_permuted", (x, weight, bias, draw.permuted(5, 17), "gelu_tanh")),
        *(
            Sample(f"rows_of_16_bytes_{act}", (draw(33, 64), draw(72, 64, scale=0.2), draw(72), draw(33, 72), act))
            for act in ACTIVATIONS
        ),
        Sample("tf32_on_request", (x, weight, bias, None, "relu", "auto", device == "cpu")),
        Sample("unaligned", (draw.unaligned(5, 24), draw.unaligned(17, 24), draw.unaligned(17), None, "gelu")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
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
        Sample(
            "backend", (x, weight, None, None, "relu", "cutlass"), matches="unknown backend .cutlass.; use one of auto,"
        ),
        Sample("dtypes", (x, weight.half()), matches="weight and x must have the same dtype"),
        Sample("bias_dtype", (x, weight, draw(17).half()), matches="bias and x must have the same dtype"),
        Sample("complex", waves, matches="x must be float64, float32, float16 or bfloat16"),
    ]


linear_act = Op(
    "linear_act",
    reference,
    samples,
    errors,
    Gradient(_keep, _backward, _unfused),
    lower,
    like=without_activation(reference),
)

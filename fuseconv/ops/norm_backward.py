"""norm_backward: the gradients with respect to the operands of layer norm and RMS norm.

Also builds the gradients of the ops that contain a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import FROM_RESULT, activate_backward
from fuseconv.ops.autocast import single
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    grad_sum: Tensor | None,
    eps: float,
    centred: bool,
    affine: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to x, weight and bias of n * weight + bias, where n = (x - m) / sqrt(v + eps).

    Args:
        grad: [..., C], the gradient with respect to the result of the norm.
        x: [..., C], the input of the norm.
        weight: [C], or None for 1.
        grad_sum: [..., C], added to the gradient with respect to x, or None for 0.
        eps: the eps of the norm.
        centred: True for layer norm, where m is the mean and v the variance over the last dim. False for RMS norm,
            where m is 0 and v the mean of squares over the last dim.
        affine: whether to compute the gradients with respect to weight and bias.

    Returns:
        The gradient with respect to x, [..., C]; the gradient with respect to weight, [C], or an empty tensor if
        `affine` is False; and the gradient with respect to bias, [C], or an empty tensor if `affine` or `centred` is
        False.

    Examples:
        >>> x = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
        >>> d_x, d_weight, d_bias = fuseconv.ops.norm_backward(torch.ones(2, 2), x, None, None, 0.0, True, True)
        >>> d_weight, d_bias
        (tensor([-2.,  2.]), tensor([2., 2.]))
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    g, s = grad.to(wide), x.to(wide)
    if centred:
        s = s - s.mean(-1, keepdim=True)
    factor = torch.rsqrt((s * s).mean(-1, keepdim=True) + eps)
    n = s * factor
    h = g if weight is None else g * weight.to(wide)
    grad_x = h - n * (h * n).mean(-1, keepdim=True)
    if centred:
        grad_x = grad_x - h.mean(-1, keepdim=True)
    grad_x = grad_x * factor
    if grad_sum is not None:
        grad_x = grad_x + grad_sum.to(wide)
    none = x.new_empty((0,))
    rows = list(range(x.dim() - 1))
    # If x has one dim, the list of dims would be empty, and torch would sum over all dims. So one dim is added.
    weight_sum = (g * n).unsqueeze(0).sum([0, *(dim + 1 for dim in rows)]).to(x.dtype) if affine else none
    bias_sum = g.unsqueeze(0).sum([0, *(dim + 1 for dim in rows)]).to(x.dtype) if affine and centred else none
    return grad_x.to(x.dtype).contiguous(), weight_sum, bias_sum


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    grad, x, weight, grad_sum = draw(2, 5, 48), draw(2, 5, 48), draw(48), draw(2, 5, 48)
    return [
        *(
            Sample(f"columns_{size}", (draw(3, size), draw(3, size), draw(size), None, 1e-5, True, True))
            for size in (7, 48, 384, 1024, 3073, 4096)
        ),
        Sample("rms", (grad, x, weight, None, 1e-5, False, True)),
        Sample("rms_wide", (draw(9, 1024), draw(9, 1024), draw(1024), draw(9, 1024), 1e-5, False, True)),
        Sample("not_affine", (grad, x, None, None, 1e-5, True, False)),
        Sample("rms_not_affine", (grad, x, weight, None, 1e-5, False, False)),
        Sample("no_weight", (grad, x, None, None, 1e-5, True, True)),
        Sample("grad_sum", (grad, x, weight, grad_sum, 1e-5, True, True)),
        Sample("rms_grad_sum", (grad, x, weight, grad_sum, 1e-5, False, True)),
        Sample("one_dim", (draw(48), draw(48), weight, None, 1e-5, True, True)),
        Sample("no_rows", (draw(0, 48), draw(0, 48), weight, None, 1e-5, True, True)),
        Sample("threads", (draw(2000, 48), draw(2000, 48), weight, None, 1e-5, True, True)),
        Sample("permuted", (draw.permuted(4, 6, 48), draw(4, 6, 48), weight, None, 1e-5, True, True)),
        Sample("strided", (draw(4, 48), draw.strided(4, 48), draw.strided(48), None, 1e-5, True, True)),
        Sample("unaligned", (draw.unaligned(4, 48), draw.unaligned(4, 48), draw(48), None, 1e-5, False, True)),
        Sample("expanded_grad", (draw(1, 1).expand(4, 48), draw(4, 48), weight, None, 1e-5, False, True)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, rest = draw(4, 6), (1e-5, True, True)
    return [
        Sample("grad", (draw(6), x, None, None, *rest), matches=r"grad must have the shape of x, \[4, 6\]"),
        Sample("grad_sum", (x, x, None, draw(6), *rest), matches=r"grad_sum must have the shape of x, \[4, 6\]"),
        Sample("weight", (x, x, draw(4), None, *rest), matches=r"weight must have the shape \[6\].*but has \[4\]"),
        Sample("dtypes", (x.half(), x, None, None, *rest), matches="grad and x must have the same dtype"),
    ]


norm_backward = Op("norm_backward", reference, samples, errors, autocast=single)


def norm_gradient(*, centred: bool, before_act: Callable[[SimpleNamespace], Tensor]) -> Gradient:
    """Returns the gradient of an op that computes act(norm(x)).

    Args:
        centred: True for layer norm, False for RMS norm.
        before_act: a function that recomputes norm(x), the input of the activation, from the op's arguments.
    """

    def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
        act = arguments.act
        return vars(arguments) | {"result": results[0] if act in FROM_RESULT and act != "none" else None}

    def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
        if kept.act != "none":
            grad = activate_backward(grad, kept.result if kept.act in FROM_RESULT else before_act(kept), kept.act)
        affine = not needed.isdisjoint({"weight", "bias"})
        x, weight, bias = norm_backward(grad, kept.x, kept.weight, None, kept.eps, centred, affine)
        return {"x": x, "weight": weight, "bias": bias}

    return Gradient(keep, backward)


def sum_norm_gradient(*, centred: bool) -> Gradient:
    """Returns the gradient of an op that returns norm(x + residual) and, if `keep_sum` is set, the sum x + residual.

    Without `keep_sum`, the backward recomputes the sum.

    Args:
        centred: True for layer norm, False for RMS norm.
    """

    def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
        terms = {"x": None, "residual": None} if arguments.keep_sum else {}
        return vars(arguments) | terms | {"sum": results[1] if arguments.keep_sum else None}

    def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor | None, grad_sum: Tensor | None) -> Values:
        if not kept.keep_sum:
            grad_sum = None
        if grad is None:
            return {"x": grad_sum, "residual": grad_sum}
        s = kept.sum if kept.keep_sum else kept.x + kept.residual
        affine = not needed.isdisjoint({"weight", "bias"})
        both, weight, bias = norm_backward(grad, s, kept.weight, grad_sum, kept.eps, centred, affine)
        return {"x": both, "residual": both, "weight": weight, "bias": bias}

    return Gradient(keep, backward)

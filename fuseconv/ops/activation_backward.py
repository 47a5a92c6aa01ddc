"""activation_backward: the gradient with respect to an activation's input, and its sum over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseconv.ops import activation
from fuseconv.ops.activation import FROM_RESULT, activate_backward
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw

ACTIVATIONS = tuple(act for act in activation.ACTIVATIONS if act in FROM_RESULT - {"none"})
"""The activations that the op accepts: their derivative can be computed from their result."""


def as_rows(x: Tensor) -> Tensor:
    """Returns a tensor of shape [..., C] reshaped to [rows, C]."""
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def reference(grad: Tensor, y: Tensor, act: str, sum_rows: bool) -> tuple[Tensor, Tensor]:
    """The gradient d = grad * act'(z) with respect to z, where y = act(z), computed from y, and the sum of d over rows.

    Args:
        grad: [..., C], the gradient with respect to y.
        y: [..., C], the result of the activation, with the shape and dtype of `grad`.
        act: the activation, whose derivative can be computed from its result: relu, sigmoid, tanh or relu6.
        sum_rows: whether to compute the sum of d over rows.

    Returns:
        d, of shape [..., C], and its sum over all dims but the last, of shape [C]. If `sum_rows` is False, the second
        tensor is empty, and d has the order of dims of `grad` and `y` if their strides are equal. Otherwise d is
        contiguous.

    Examples:
        >>> y = torch.tensor([[0.0, 2.0], [3.0, 4.0]])
        >>> fuseconv.ops.activation_backward(torch.ones(2, 2), y, "relu", True)
        (tensor([[0., 1.],
                [1., 1.]]), tensor([1., 2.]))
    """
    if act not in ACTIVATIONS:
        raise ValueError(f"the derivative of '{act}' does not follow from y; use one of {', '.join(ACTIVATIONS)}")
    d = activate_backward(grad, y, act)
    if sum_rows or grad.stride() != y.stride():
        d = d.contiguous()
    return d, as_rows(d).sum(0) if sum_rows else d.new_empty((0,))


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    grad, y = draw(2, 5, 48), draw(2, 5, 48).sigmoid() - 0.25
    return [
        *(Sample(act, (grad, y, act, True)) for act in ACTIVATIONS),
        *(Sample(f"{act}_alone", (grad, y, act, False)) for act in ACTIVATIONS),
        Sample("one_dim", (draw(7), draw(7), "relu", True)),
        Sample("no_rows", (draw(0, 7), draw(0, 7), "relu", True)),
        Sample("no_columns", (draw(3, 0), draw(3, 0), "relu", True)),
        Sample("rows", (draw(1031, 24), draw(1031, 24), "relu", True)),
        Sample("columns", (draw(3, 1031), draw(3, 1031), "tanh", True)),
        Sample("permuted", (draw.permuted(4, 6, 48), draw.permuted(4, 6, 48), "tanh", True)),
        Sample("permuted_alone", (draw.permuted(4, 6, 48), draw.permuted(4, 6, 48), "tanh", False)),
        Sample("across_alone", (draw.across(2, 131, 70), draw.across(2, 131, 70), "relu", False)),
        *(Sample(f"mixed_{act}", (draw.across(2, 31, 70), draw(2, 31, 70), act, False)) for act in ACTIVATIONS),
        Sample("strided", (draw.strided(4, 48), draw(4, 48), "sigmoid", True)),
        Sample("padded", (draw.padded(40, 48), draw.padded(40, 48), "relu", True)),
        Sample("expanded", (draw(1, 1).expand(4, 48), draw(4, 48), "relu", True)),
        Sample("unaligned", (draw.unaligned(9, 48), draw.unaligned(9, 48), "relu", True)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    grad = draw(4, 6)
    return [
        Sample("sizes", (grad, draw(6), "relu", True), matches=r"y must have the shape of grad, \[4, 6\]"),
        Sample("scalar", (draw(), draw(), "relu", True), matches="grad must have at least one dim"),
        Sample("act", (grad, grad, "gelu", True), matches="derivative of 'gelu' does not follow from y"),
        Sample("dtypes", (grad, grad.half(), "relu", True), matches="y and grad must have the same dtype"),
    ]


activation_backward = Op("activation_backward", reference, samples, errors)

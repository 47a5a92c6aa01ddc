"""The activations that an `act` argument can name, and their derivatives, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hard_swish", "hard_sigmoid", "relu6")
"""The valid values of an `act` argument. gelu is the erf form."""


def check_activation(act: str) -> None:
    """Checks the name of an activation.

    Raises:
        ValueError: it is unknown.
    """
    if act not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{act}'; use one of {', '.join(ACTIVATIONS)}")


def activate(x: Tensor, act: str) -> Tensor:
    """Returns act(x).

    Raises:
        ValueError: the activation is unknown.
    """
    check_activation(act)
    match act:
        case "none":
            return x
        case "relu":
            return torch.relu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "silu":
            return functional.silu(x)
        case "sigmoid":
            return torch.sigmoid(x)
        case "tanh":
            return torch.tanh(x)
        case "hard_swish":
            return functional.hardswish(x)
        case "hard_sigmoid":
            return functional.hardsigmoid(x)
        case "relu6":
            return functional.relu6(x)
    raise AssertionError(act)


FROM_RESULT = frozenset({"none", "relu", "sigmoid", "tanh", "relu6"})
"""The activations whose derivative is a function of their result. The derivative of the others needs their input."""


def activate_backward(grad: Tensor, value: Tensor | None, act: str) -> Tensor:
    """Returns grad * act'(x), computed by differentiable ops.

    Args:
        grad: the gradient with respect to act(x).
        value: act(x) if the activation is in `FROM_RESULT`, else x. Ignored for "none".
        act: the name of the activation.

    Raises:
        ValueError: the activation is unknown.
    """
    check_activation(act)
    aten = torch.ops.aten
    result: Tensor
    match act:
        case "none":
            return grad
        case "relu":
            result = aten.threshold_backward(grad, value, 0)
        case "gelu":
            result = aten.gelu_backward(grad, value)
        case "gelu_tanh":
            result = aten.gelu_backward(grad, value, approximate="tanh")
        case "silu" if torch.is_grad_enabled():  # silu_backward has no derivative of its own
            assert value is not None
            sigmoid = torch.sigmoid(value)
            result = grad * (sigmoid * (1 + value * (1 - sigmoid)))
        case "silu":
            result = aten.silu_backward(grad, value)
        case "sigmoid":
            result = aten.sigmoid_backward(grad, value)
        case "tanh":
            result = aten.tanh_backward(grad, value)
        case "hard_swish":
            result = aten.hardswish_backward(grad, value)
        case "hard_sigmoid":
            assert value is not None  # hardsigmoid_backward has no derivative of its own
            result = torch.where((value > -3) & (value < 3), grad / 6, 0)
        case "relu6":
            result = aten.hardtanh_backward(grad, value, 0, 6)
        case _:
            raise AssertionError(act)
    return result

"""The activations an op's `act` argument names, and their derivatives, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""The values of an `act` argument; gelu is the erf form."""


def activate(x: Tensor, act: str) -> Tensor:
    """Returns act(x).

    Raises:
        ValueError: there is no such activation.
    """
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
    raise ValueError(f"unknown activation '{act}'; use one of {', '.join(ACTIVATIONS)}")


FROM_RESULT = frozenset({"none", "relu", "sigmoid", "tanh"})
"""The activations whose derivative follows from their result; that of the others needs what they were applied to."""


def activate_backward(grad: Tensor, value: Tensor | None, act: str) -> Tensor:
    """Returns grad * act'(x), by ops that can be differentiated again.

    Args:
        grad: the gradient of act(x).
        value: act(x) if the activation is one of `FROM_RESULT`, else x; not read for "none".
        act: the activation.

    Raises:
        ValueError: there is no such activation.
    """
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
        case _:
            raise ValueError(f"unknown activation '{act}'; use one of {', '.join(ACTIVATIONS)}")
    return result

"""Implements the activations that an `act` argument can name, and their derivatives, in plain PyTorch."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor
from torch.nn import functional

_PARAMETERS = {"leaky_relu": 0.01, "elu": 1.0}  # the default parameters, as in PyTorch
_NAMES = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hard_swish", "hard_sigmoid", "relu6")
ACTIVATIONS = (*_NAMES, "relu_squared", *_PARAMETERS, "mish")
"""The valid values of an `act` argument. gelu is the exact form, with erf. leaky_relu accepts a slope and elu an alpha
in parentheses, as in `leaky_relu(0.1)`."""


def parse_activation(act: str) -> tuple[str, float]:
    """Parses the value of an `act` argument, such as `relu` or `leaky_relu(0.1)`.

    Returns:
        The name of the activation and its parameter. The parameter is 0 if the activation has none.

    Raises:
        ValueError: the name is unknown, the activation has no parameter, or the parameter is not a finite number.
    """
    name, _, inside = act.partition("(")
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'; use one of {', '.join(ACTIVATIONS)}")
    if name == act:
        return name, _PARAMETERS.get(name, 0.0)
    if name not in _PARAMETERS:
        raise ValueError(f"the activation '{act}' must be {name}, which has no parameter")
    number = re.fullmatch(r"(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\)", inside)
    if number is None or not math.isfinite(float(number[1])):
        raise ValueError(
            f"the activation '{act}' must be {name} or, with a finite number, as in {name}(0.5)",
        )
    return name, float(number[1])


def activate(x: Tensor, act: str) -> Tensor:
    """Returns act(x), computed elementwise.

    Args:
        x: of any shape.
        act: the value of an `act` argument.

    Raises:
        ValueError: the activation is unknown or its parameter is invalid.
    """
    name, parameter = parse_activation(act)
    match name:
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
        case "relu_squared":
            return torch.relu(x) * torch.relu(x)
        case "leaky_relu":
            return functional.leaky_relu(x, parameter)
        case "elu":
            return functional.elu(x, parameter)
        case "mish":
            return functional.mish(x)
    raise AssertionError(act)


FROM_RESULT = frozenset({"none", "relu", "sigmoid", "tanh", "relu6"})
"""The activations whose derivative can be computed from their result. All other derivatives need the input."""


def activate_backward(grad: Tensor, value: Tensor | None, act: str) -> Tensor:
    """Returns grad * act'(x), computed with differentiable ops.

    Args:
        grad: the gradient with respect to act(x).
        value: act(x) if the activation is in `FROM_RESULT`, else x. Ignored for "none".
        act: the value of an `act` argument.

    Raises:
        ValueError: the activation is unknown or its parameter is invalid.
    """
    name, parameter = parse_activation(act)
    aten = torch.ops.aten
    result: Tensor
    match name:
        case "none":
            return grad
        case "relu":
            result = aten.threshold_backward(grad, value, 0)
        case "gelu":
            result = aten.gelu_backward(grad, value)
        case "gelu_tanh":
            result = aten.gelu_backward(grad, value, approximate="tanh")
        case "silu" if torch.is_grad_enabled():  # silu_backward and mish_backward have no derivative
            assert value is not None
            sigmoid = torch.sigmoid(value)
            result = grad * (sigmoid * (1 + value * (1 - sigmoid)))
        case "mish" if torch.is_grad_enabled():
            assert value is not None
            tanh = torch.tanh(functional.softplus(value))
            result = grad * (tanh + value * torch.sigmoid(value) * (1 - tanh * tanh))
        case "silu":
            result = aten.silu_backward(grad, value)
        case "sigmoid":
            result = aten.sigmoid_backward(grad, value)
        case "tanh":
            result = aten.tanh_backward(grad, value)
        case "hard_swish":
            result = aten.hardswish_backward(grad, value)
        case "hard_sigmoid":
            assert value is not None  # hardsigmoid_backward has no derivative
            result = torch.where((value > -3) & (value < 3), grad / 6, 0)
        case "relu6":
            result = aten.hardtanh_backward(grad, value, 0, 6)
        case "relu_squared":
            assert value is not None
            result = grad * (2 * torch.relu(value))
        case "leaky_relu":
            result = aten.leaky_relu_backward(grad, value, parameter, False)
        case "elu":
            result = aten.elu_backward(grad, parameter, 1, 1, False, value)
        case "mish":
            result = aten.mish_backward(grad, value)
        case _:
            raise AssertionError(act)
    return result

"""The activations an op's `act` argument names, in plain PyTorch."""

from __future__ import annotations

import math

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


def activation_gradient(grad: Tensor, x: Tensor, act: str) -> Tensor:
    """Returns the gradient before the activation from the one after it: grad act'(x).

    Raises:
        ValueError: there is no such activation.
    """
    match act:
        case "none":
            return grad
        case "relu":
            return torch.where(x <= 0, torch.zeros_like(grad), grad)
        case "gelu":
            density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
            return grad * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)
        case "gelu_tanh":
            root = math.sqrt(2 / math.pi)
            t = torch.tanh(root * (x + 0.044715 * x * x * x))
            return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x))
        case "silu":
            s = torch.sigmoid(x)
            return grad * (s + x * (s * (1 - s)))
        case "sigmoid":
            s = torch.sigmoid(x)
            return grad * (s * (1 - s))
        case "tanh":
            t = torch.tanh(x)
            return grad * (1 - t * t)
    raise ValueError(f"unknown activation '{act}'; use one of {', '.join(ACTIVATIONS)}")

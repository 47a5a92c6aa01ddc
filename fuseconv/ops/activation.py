"""The activations an op's `act` argument names, in plain PyTorch."""

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

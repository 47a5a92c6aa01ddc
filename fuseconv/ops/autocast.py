"""The three autocast policies of the ops, which are those of torch's own ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""The dispatch key of autocast, by device type."""


def current(device: str) -> torch.dtype | None:
    """Returns the dtype that autocast uses for matrix products on a device type, or None if autocast is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def lower(tensors: list[Tensor], device: str) -> torch.dtype | None:
    """To the dtype of autocast, like those of matrix products in torch, unless one of them is float64."""
    return None if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.get_autocast_dtype(device)


def single(tensors: list[Tensor], device: str) -> torch.dtype | None:  # noqa: ARG001  # a policy takes both
    """To float32, like those of norms and sums in torch, unless one of them is float64."""
    return None if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def widest(tensors: list[Tensor], device: str) -> torch.dtype | None:  # noqa: ARG001  # a policy takes both
    """To the widest dtype among them, like those of elementwise ops in torch."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


Policy = Callable[[list[Tensor], str], torch.dtype | None]


def autocast_kernel(overload: torch._ops.OpOverload, policy: Policy, device: str) -> Callable[..., Any]:
    """Returns the op's kernel for the Autocast key of `device`: it casts floating tensors, then calls the op."""
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEYS[device]))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        floating = [
            value
            for value in (*args, *kwargs.values())
            if isinstance(value, Tensor) and value.is_floating_point() and value.device.type == device
        ]
        dtype = policy(floating, device) if floating else None

        def cast(value: Any) -> Any:
            return value if dtype is None or not any(value is tensor for tensor in floating) else value.to(dtype)

        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return overload(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return kernel

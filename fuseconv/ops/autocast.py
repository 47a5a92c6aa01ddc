"""The three autocast policies of the ops. torch applies the same policies to its own ops.

The docstring of a policy completes the sentence "Under torch.autocast, floating tensors are cast ..." in an op's help
text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""Maps each device type to its dispatch key for autocast."""


def current(device: str) -> torch.dtype | None:
    """Returns the dtype to which autocast casts the operands of matrix products, or None if autocast is disabled.

    Args:
        device: the device type, "cpu" or "cuda".
    """
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def lower(tensors: list[Tensor], device: str) -> torch.dtype | None:
    """To the autocast dtype, as for torch's matrix products, unless one of the tensors is float64."""
    return None if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.get_autocast_dtype(device)


def single(tensors: list[Tensor], device: str) -> torch.dtype | None:  # noqa: ARG001  # every policy takes both
    """To float32, as for torch's norms and sums, unless one of the tensors is float64."""
    return None if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def widest(tensors: list[Tensor], device: str) -> torch.dtype | None:  # noqa: ARG001  # every policy takes both
    """To the widest dtype among the tensors, as for torch's elementwise ops."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


Policy = Callable[[list[Tensor], str], torch.dtype | None]


def autocast_kernel(overload: torch._ops.OpOverload, policy: Policy, device: str) -> Callable[..., Any]:
    """Returns an op's kernel for the autocast dispatch key of a device type.

    The kernel casts the floating-point tensors on this device type to one dtype, and then calls the op.

    Args:
        overload: the op.
        policy: a function `(tensors, device) -> dtype` that selects the dtype, or returns None to cast no tensor.
        device: the device type, "cpu" or "cuda".
    """
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

"""Checks that the tensors of a model are strided tensors with values in memory, the only kind that can be converted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from fuseconv.errors import UnsupportedError


def oddity(tensor: torch.Tensor) -> str:
    """Returns the reason why a tensor cannot be converted, such as `is quantized`.

    Returns an empty string if the tensor is strided, initialized, and has its values in memory.
    """
    if is_lazy(tensor):
        return "is not initialized: its module was never called"
    if tensor.is_nested:
        return "is nested"
    if tensor.is_quantized:
        return "is quantized"
    if tensor.layout is not torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.').lstrip('_').replace('_', ' ')}, not strided"
    if tensor.is_meta:
        return "is on the meta device: it has a shape but no values"
    return ""


def check_plain_tensors(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Raises an error if one of the tensors is not strided or does not have its values in memory.

    Args:
        tensors: the tensors by name.
        where: the path of the file that contains the tensors, for the message.

    Raises:
        UnsupportedError: a tensor cannot be converted, for example because it is sparse. The error names the tensor.
    """
    for name, tensor in tensors.items():
        if found := oddity(tensor):
            raise UnsupportedError(
                f"{name} {found}",
                where=where,
                fix="save the model with dense, initialized weights in memory, as to_dense() and dequantize() return",
            )

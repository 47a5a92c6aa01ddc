"""Detects arguments with which a PyTorch op crashes the process, so that the op is not called with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def check_call(op: Any, args: Sequence[Any]) -> None:
    """Checks that a call does not crash the process.

    Args:
        op: the op.
        args: its positional arguments; tensors may be fake.

    Raises:
        ValueError: attention would read out of bounds, or divide by the number of heads, as in torch 2.11.
    """
    operands = args[:3]
    if op is not _ATTENTION or len(operands) < 3 or not all(isinstance(one, torch.Tensor) for one in operands):
        return
    _, key, value = operands
    if min(key.dim(), value.dim()) > 1 and key.shape[-2] != value.shape[-2]:
        raise ValueError("attention with keys and values of different lengths")
    heads = [operand.shape[-3] for operand in operands if operand.dim() > 2]
    if any(isinstance(count, int) and count == 0 for count in heads):
        raise ValueError("attention without heads")

"""Detects calls of PyTorch ops that would crash the process, so that these calls are not made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def check_call(op: Any, args: Sequence[Any]) -> None:
    """Raises an error if a call of `scaled_dot_product_attention` would crash the process. Accepts all other ops.

    Args:
        op: the op to be called.
        args: the positional arguments of the call. The tensors may be fake.

    Raises:
        ValueError: the op would read out of bounds because keys and values differ in length, or divide by zero because
            there are no heads, as in torch 2.11.
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

"""The heads of attention: keys and values that several heads of queries share, and the layout of the result."""

from __future__ import annotations

import torch
from torch import Tensor


def of_heads(x: Tensor, q: Tensor) -> Tensor:
    """Returns the keys or values that each head of the queries uses.

    The indices are valid for all sizes, also those at which the exporter of ONNX functions runs a reference.

    Args:
        x: [..., G, T, D], keys or values of G heads.
        q: [..., H, S, D], queries of H heads, where G divides H. Head h uses head h // (H / G) of `x`.

    Returns:
        [..., H, T, D]. It is `x` itself if each head has its own.
    """
    heads, groups = q.shape[-3], x.shape[-3]
    if heads == groups:
        return x
    return x.index_select(-3, torch.arange(heads, device=x.device) * groups // heads)


def adjacent_heads(result: Tensor) -> Tensor:
    """Returns a copy of a tensor [..., H, S, E] that is stored as a contiguous tensor [..., S, H, E]."""
    return result.transpose(-3, -2).clone(memory_format=torch.contiguous_format).transpose(-3, -2)

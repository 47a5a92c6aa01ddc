"""The layout of the results of ops on images: channels last, or contiguous."""

from __future__ import annotations

import torch
from torch import Tensor


def is_channels_last(x: Tensor) -> bool:
    """Returns whether a tensor [N, C, ...] is not contiguous, and its dims are in memory as channels last has them.

    The channels are then innermost. Unlike a dense tensor, the tensor may have gaps: it may be some of the channels, or
    of the positions, of a wider one. A tensor without spatial dims, or with more than three, is not channels last.
    """
    if x.dim() not in (3, 4, 5) or x.is_contiguous() or (x.shape[1] != 1 and x.stride(1) != 1):
        return False
    extent = x.stride(1) * x.shape[1]
    for dim in (*range(x.dim() - 1, 1, -1), 0):
        if not _is_known(x.shape[dim] == 1):
            if not _is_known(x.stride(dim) >= extent):
                return False
            extent = x.stride(dim) * x.shape[dim]
    return True


def _is_known(condition: bool | torch.SymBool) -> bool:
    """Returns whether a condition holds, or False if that depends on data, as a number of true elements does."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def channels_last(x: Tensor) -> Tensor:
    """Returns a tensor [N, C, ...] whose channels are innermost in memory. Copies it if they are not."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)

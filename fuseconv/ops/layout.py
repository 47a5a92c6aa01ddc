"""The layout of the results of ops on images: channels last, or contiguous."""

from __future__ import annotations

from torch import Tensor


def is_channels_last(x: Tensor) -> bool:
    """Returns whether a tensor [N, C, ...] fills its memory with the channels innermost, and is not contiguous.

    A tensor without spatial dims, or with more than three, is not channels last.
    """
    return x.dim() in (3, 4, 5) and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def channels_last(x: Tensor) -> Tensor:
    """Returns a tensor [N, C, ...] whose channels are innermost in memory. Copies it if they are not."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)

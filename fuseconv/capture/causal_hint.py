"""Exports PyTorch's transformers without reading the values of a mask to find out whether it is causal.

`nn.TransformerEncoder` and `nn.TransformerDecoder` compare their mask with a causal one, unless the caller says what it
is. The answer is only a hint for a faster kernel: the mask is applied in either case. An exported program cannot branch
on values, so the hint is not given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules import transformer


@contextmanager
def without_causal_hint() -> Iterator[None]:
    """Within the block, a mask counts as causal only if the caller of the transformer says so."""
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _said
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


def _said(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001 - torch's signature
    """Replaces `_detect_is_causal_mask`, and has its parameters."""
    return is_causal is True

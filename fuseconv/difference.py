"""The first element in which two results differ, in words: the counter-example of a wrong rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseconv.tolerance import TOLERANCES, compare


def difference(actual: Sequence[torch.Tensor], original: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> str:
    """Says how what a replacement gives differs from what it replaces; nothing when it does not.

    Args:
        actual: what the replacement gives.
        original: what the matched ops give.
        truth: what the matched ops give in float64; see tolerance.py.
    """
    for position, (one, other, true) in enumerate(zip(actual, original, truth, strict=True)):
        row = compare(one, other, true)
        if not row.ok:
            name = "the result" if len(actual) == 1 else f"result {position}"
            return f"{name} differs{_first(one, other)}: {row.reason}"
    return ""


def _first(actual: torch.Tensor, original: torch.Tensor) -> str:
    if actual.shape != original.shape or actual.dtype != original.dtype or not original.numel():
        return ""
    if original.dtype in TOLERANCES:
        tolerance = TOLERANCES[original.dtype]
        same = torch.isclose(actual, original, tolerance.rtol, tolerance.atol, equal_nan=True)
    else:
        same = actual == original
    different = (~same).nonzero()
    place = different[0].tolist() if different.numel() else [0] * original.dim()
    index = tuple(place)
    return f" at {place}, {actual[index].item()!r} for {original[index].item()!r}"

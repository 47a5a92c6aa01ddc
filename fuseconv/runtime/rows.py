"""Counts the rows of a batch, pads them to the size of a bucket, and removes the padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.spec import Contract


def batched(contract: Contract, buckets: Buckets) -> tuple[bool, ...]:
    """Returns for each input whether it has the dim of the buckets, and so has one row per element of the batch."""
    return tuple(any(dim.name == buckets.dim for dim in spec.dims()) for spec in contract.inputs)


def rows_of(inputs: Sequence[torch.Tensor], has: Sequence[bool]) -> int:
    """Returns the number of rows of a call: the first size of the first input that has rows."""
    return next(tensor.shape[0] for tensor, having in zip(inputs, has, strict=True) if having)


def repeated(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns a contiguous copy, padded to the given number of rows with copies of the first row, which is valid."""
    padded = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    padded[: len(tensor)] = tensor
    padded[len(tensor) :] = tensor[:1]
    return padded


def unpadded(outputs: Sequence[torch.Tensor], contract: Contract, rows: int) -> tuple[torch.Tensor, ...]:
    """Removes the padding rows from the outputs that have rows."""
    assert contract.buckets is not None
    having = contract.buckets.outputs
    return tuple(x[:rows] if name in having else x for name, x in zip(contract.outputs, outputs, strict=True))

"""Counts the rows of a batch, pads them to the size of a bucket, and removes the padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.spec import Contract


def batched(contract: Contract, buckets: Buckets) -> tuple[bool, ...]:
    """Returns for each input whether it is batched: whether its shape contains the dim that the buckets round up."""
    return tuple(any(dim.name == buckets.dim for dim in spec.dims()) for spec in contract.inputs)


def rows_of(inputs: Sequence[torch.Tensor], has: Sequence[bool]) -> int:
    """Returns the batch size of a call: the size of the first axis of the first input for which `has` is True."""
    return next(tensor.shape[0] for tensor, having in zip(inputs, has, strict=True) if having)


def repeated(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns a contiguous copy of `tensor` with `rows` rows. The padding rows are valid: copies of the first."""
    padded = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    padded[: len(tensor)] = tensor
    padded[len(tensor) :] = tensor[:1]
    return padded


def unpadded(outputs: Sequence[torch.Tensor], contract: Contract, rows: int) -> tuple[torch.Tensor, ...]:
    """Returns the outputs with only the first `rows` rows of each batched output, which removes the padding."""
    assert contract.buckets is not None
    having = contract.buckets.outputs
    return tuple(x[:rows] if name in having else x for name, x in zip(contract.outputs, outputs, strict=True))

"""The rows of a batch: counting them and padding them to the size of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.spec import Contract


def batched(contract: Contract, buckets: Buckets) -> tuple[bool, ...]:
    """Returns which inputs have the dim."""
    return tuple(any(dim.name == buckets.dim for dim in spec.dims()) for spec in contract.inputs)


def rows_of(inputs: Sequence[torch.Tensor], has: Sequence[bool]) -> int:
    """Returns the size of the dim in a call."""
    return next(tensor.shape[0] for tensor, having in zip(inputs, has, strict=True) if having)


def repeated(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns a contiguous copy padded to the given number of rows, with copies of the first, which are valid input."""
    padded = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    padded[: len(tensor)] = tensor
    padded[len(tensor) :] = tensor[:1]
    return padded


def unpadded(outputs: Sequence[torch.Tensor], contract: Contract, rows: int) -> tuple[torch.Tensor, ...]:
    """Returns the outputs without padding."""
    assert contract.buckets is not None
    having = contract.buckets.outputs
    return tuple(x[:rows] if name in having else x for name, x in zip(contract.outputs, outputs, strict=True))

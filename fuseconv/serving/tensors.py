"""Converts the protocol's arrays to tensors and back. Arrays store BF16 values as the bits in unsigned integers."""

from __future__ import annotations

import torch

from fuseconv.contract.dtypes import short_dtype
from fuseconv.contract.inputs import torch_dtype
from fuseconv.serving.datatypes import DATATYPES, SHORT
from fuseconv.serving.json_tensors import Array
from fuseconv.serving.responses import Tensor


def to_torch(array: Array, datatype: str) -> torch.Tensor:
    """Converts an array to a CPU tensor, which shares the array's memory. The array must be writable."""
    return torch.from_numpy(array).view(torch_dtype(SHORT[datatype]))


def of_torch(tensor: torch.Tensor) -> Tensor:
    """Converts a CPU tensor to a tensor of the protocol. The two share memory if the CPU tensor is contiguous."""
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return Tensor(DATATYPES[short_dtype(tensor.dtype)], bits.contiguous().numpy())

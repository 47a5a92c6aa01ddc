"""Arrays of the protocol to tensors, and tensors to arrays. BF16 is held by the bits of unsigned integers."""

from __future__ import annotations

import torch

from fuseconv.contract.dtypes import short_dtype
from fuseconv.contract.inputs import torch_dtype
from fuseconv.serving.datatypes import DATATYPES, SHORT
from fuseconv.serving.json_tensors import Array
from fuseconv.serving.responses import Tensor


def to_torch(array: Array, datatype: str) -> torch.Tensor:
    """Returns a tensor on the CPU that shares the memory of the array, which must be writable."""
    return torch.from_numpy(array).view(torch_dtype(SHORT[datatype]))


def of_torch(tensor: torch.Tensor) -> Tensor:
    """Returns a tensor on the CPU as one of the protocol. They share memory if the tensor is contiguous."""
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return Tensor(DATATYPES[short_dtype(tensor.dtype)], bits.contiguous().numpy())

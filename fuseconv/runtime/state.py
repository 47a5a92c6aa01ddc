"""Allocates and advances the state that a model carries from call to call, such as a key-value cache."""

from __future__ import annotations

from typing import Any

import torch

from fuseconv.contract.dtypes import DTYPES
from fuseconv.contract.spec import Contract
from fuseconv.errors import UsageError


def zero_state(contract: Contract, **sizes: int) -> dict[str, torch.Tensor]:
    """Returns the initial state: a tensor of zeros for each state input, by the input's name.

    Args:
        contract: the contract, which declares the state inputs.
        sizes: the size of each dim of the state, for example `batch=2`.

    Raises:
        UsageError: a size is missing or not allowed, or `sizes` names a dim that the state does not have.
    """
    names = {name for name, _ in contract.state}
    specs = [spec for spec in contract.inputs if spec.name in names]
    dims = {dim.name: dim for spec in specs for dim in spec.dims()}
    if sizes.keys() != dims.keys():
        needed, given = (", ".join(names) or "none" for names in (dims, sizes))
        raise UsageError(
            f"the state has the dims {needed}, but the sizes are those of {given}",
            where="the sizes of the state",
            fix="give each dim a size: " + ", ".join(f"{name}={dim.min}" for name, dim in dims.items()),
        )
    for name, size in sizes.items():
        if refusal := dims[name].refusal(size):
            raise UsageError(f"{name} is {size}, {refusal}", where="the sizes of the state", fix=f"use {dims[name]}")
    return {
        spec.name: torch.zeros(spec.sizes(sizes), dtype=_dtype(spec.dtype), device=contract.device) for spec in specs
    }


def next_state(contract: Contract, outputs: Any) -> dict[str, torch.Tensor]:
    """Returns the state for the next call, by input name.

    Args:
        contract: the contract, which declares which outputs become which state inputs.
        outputs: the outputs of the call: a single tensor, or a sequence with one tensor per output.
    """
    tensors = (outputs,) if len(contract.outputs) == 1 else tuple(outputs)
    named = dict(zip(contract.outputs, tensors, strict=True))
    return {name: named[output] for name, output in contract.state}


def _dtype(short: str) -> torch.dtype:
    dtype = getattr(torch, DTYPES[short].removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype

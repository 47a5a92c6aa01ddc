"""Narrows the dims of the contract according to the guards of a torch.export archive.

An archive exported with `Dim.AUTO` contains a range for each dim, and guards that the module checks in every call: for
example, that a size is even, or that a quarter of the size is not 1. A contract expresses such guards as multiples and
ranges.
"""

from __future__ import annotations

import torch

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import example_sizes, torch_dtype
from fuseconv.contract.spec import Contract
from fuseconv.sizes.multiples import accepted

LOWER_ENDS = 16
"""The number of sizes, from a dim's minimum upwards, that are tried as its new minimum."""


def narrowed(module: torch.nn.Module, contract: Contract) -> Contract:
    """Returns a contract whose steps and minimums exclude sizes that the guards of an archive reject.

    If no step satisfies the guards, the steps are unchanged, and the module reports the violation when it is called.

    Args:
        module: the module of an exported program.
        contract: the inputs of the module, with the ranges of the archive.
    """
    if not hasattr(module, "_guards_fn"):
        return contract
    if not _holds(module, contract, {}):
        contract = contract.with_dims(
            {dim.name: dim for dim in accepted(contract, lambda one: _holds(module, one, {}))}
        )
    return contract.with_dims({name: _raised(module, contract, dim) for name, dim in contract.dims().items()})


def _holds(module: torch.nn.Module, contract: Contract, sizes: dict[str, int]) -> bool:
    """Returns whether the guards hold for the given sizes, and for example sizes of all other dims.

    The guards are called with meta tensors, because they depend only on sizes.
    """
    chosen = {**example_sizes(contract), **sizes}
    tensors = (
        torch.empty(spec.sizes(chosen), dtype=torch_dtype(spec.dtype), device="meta") for spec in contract.inputs
    )
    try:
        module._guards_fn(*tensors)  # type: ignore[operator]
    except (AssertionError, ZeroDivisionError):  # torch divides by a size that may be 0
        return False
    return True


def _raised(module: torch.nn.Module, contract: Contract, dim: Dim) -> Dim:
    ends = range(dim.min, min(dim.max, dim.min + LOWER_ENDS * dim.step) + 1, dim.step)
    low = next((size for size in ends if _holds(module, contract, {dim.name: size})), dim.min)
    return dim.narrowed(low, dim.max, dim.step)

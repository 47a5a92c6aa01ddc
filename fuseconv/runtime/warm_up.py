"""Calls a model when it is loaded, so that its user's first calls are as fast as later ones.

CUDA loads a kernel when it is first launched, which takes milliseconds, and a model launches other kernels at
other sizes. TorchScript compiles a graph in its second call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.ladder import ladder
from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError, is_out_of_memory


def warm_up(model: Callable[..., Any], contract: Contract, seconds: float) -> int:
    """Calls a model at sizes through the ranges of its contract, small ones first, and frees the memory that it took.

    It stops early when the time is over or memory runs out. The random numbers of the caller do not change.

    Args:
        model: what is called with the inputs of the contract.
        contract: the inputs.
        seconds: the time after which no further call begins.

    Returns:
        The number of calls.

    Raises:
        UpstreamError: a call failed for another reason than memory.
    """
    end = time.monotonic() + seconds
    sizes = sorted(ladder(contract, example_sizes(contract)), key=lambda one: math.prod(one.values()))
    calls = 0
    devices = [torch.cuda.current_device()] if contract.device == "cuda" else []
    with torch.random.fork_rng(devices):
        for one in (sizes[0], *sizes):
            if time.monotonic() >= end or not has_memory(model, contract, one, any_failure=calls > 0):
                break
            calls += 1
    if contract.device == "cuda":
        torch.cuda.empty_cache()
    return calls


def has_memory(
    model: Callable[..., Any], contract: Contract, sizes: Mapping[str, int], *, any_failure: bool = False
) -> bool:
    """Calls a model once with random inputs. Returns whether memory sufficed for the inputs and for the call.

    Args:
        model: what is called with the inputs of the contract.
        contract: the inputs.
        sizes: the sizes of its dims.
        any_failure: whether any failure is taken for lack of memory. AOTInductor does not say why a call failed.

    Raises:
        UpstreamError: the call failed for another reason. RuntimeError: the same, of the device; it stays.
    """
    try:
        model(*draw(contract, sizes, seed=0))
        if contract.device == "cuda":
            torch.cuda.synchronize()
    except (UpstreamError, RuntimeError, MemoryError) as error:
        if not (any_failure or is_out_of_memory(error)):
            raise
        if contract.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return False
    return True

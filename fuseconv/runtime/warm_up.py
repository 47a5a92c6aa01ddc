"""Warms up a loaded model, so that the user's first calls are as fast as later calls.

CUDA loads each kernel at its first launch, which takes milliseconds, and a model launches different kernels at
different sizes. TorchScript compiles a graph during the second call.
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

DEFAULT = 0.5
"""For how many seconds a model with dynamic sizes is warmed up on CUDA. Of 300 calls of BERT-base at random sizes on an
H200, the third slowest then takes 1.6 ms instead of 7.3 (bench/results/h200_serving_warmed.json)."""


def default_seconds(contract: Contract) -> float:
    """Returns for how many seconds a model is warmed up if its user says nothing: 0 on the CPU or with static sizes."""
    return DEFAULT if contract.device == "cuda" and contract.dims() else 0.0


def warm_up(model: Callable[..., Any], contract: Contract, seconds: float) -> int:
    """Calls a model at sizes across the ranges of its contract, small sizes first, and then frees the unused memory.

    Stops early when memory runs out, or when the next call would probably end after the time limit, because the last
    call took too long for its sizes. The caller's random state does not change.

    Args:
        model: the model, called with the inputs of the contract.
        contract: the contract of the model.
        seconds: the time limit.

    Returns:
        The number of calls.

    Raises:
        UpstreamError: the first call failed for a reason other than lack of memory.
    """
    end = time.monotonic() + seconds
    sizes = sorted(ladder(contract, example_sizes(contract)), key=lambda one: math.prod(one.values()))
    calls, per_element = 0, 0.0
    devices = [torch.cuda.current_device()] if contract.device == "cuda" else []
    with torch.random.fork_rng(devices):
        for one in (sizes[0], *sizes):
            begun, elements = time.monotonic(), math.prod(one.values())
            late = begun >= end or begun + per_element * elements > end
            if late or not has_memory(model, contract, one, any_failure=calls > 0):
                break
            calls += 1
            per_element = (time.monotonic() - begun) / elements if calls > 1 else 0.0  # the first call is no measure
    if contract.device == "cuda":
        torch.cuda.empty_cache()
    return calls


def has_memory(
    model: Callable[..., Any], contract: Contract, sizes: Mapping[str, int], *, any_failure: bool = False
) -> bool:
    """Calls a model once with random inputs. Returns False if memory ran out for the inputs or during the call.

    Args:
        model: the model, called with the inputs of the contract.
        contract: the contract of the model.
        sizes: the size of each dim of the contract.
        any_failure: whether to treat any failure as lack of memory. AOTInductor does not say why a call failed.

    Raises:
        UpstreamError: the call failed for a reason other than lack of memory.
        RuntimeError: the device failed for a reason other than lack of memory, and stays unusable.
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

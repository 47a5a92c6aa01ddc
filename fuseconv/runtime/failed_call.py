"""Explains a failed call: names an input whose values are out of range, or repeats what the runtime says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import has_range, is_integer
from fuseconv.errors import ContractError, FuseconvError, UpstreamError, is_out_of_memory

_BACKTRACE = "\nException raised from "
"""What comes before LibTorch's C++ backtrace in an error message."""


def explain_call(error: Exception, target: str, contract: Contract, inputs: Sequence[torch.Tensor]) -> FuseconvError:
    """Returns the error to raise for a call that failed.

    The values of integer inputs are compared with the ranges in the contract, such as the rows of an embedding table.
    This happens only after a failure, so calls that succeed do not pay for it.

    Args:
        error: what the runtime raised. Its C++ backtrace is left out of the message.
        target: the name of the target that failed.
        contract: the contract of the model.
        inputs: the inputs of the call, in the order of the contract.
    """
    for spec, tensor in zip(contract.inputs, inputs, strict=True) if not is_out_of_memory(error) else ():
        if (outside := _outside(spec, tensor)) is not None:
            what = f"the target {target} failed: input {spec.name} has {outside}"
            return ContractError(what, where=f"input {spec.name}", fix="pass values within the range")
    return UpstreamError(
        f"the target {target} failed: {message(error)}",
        where=f"a call with {', '.join(f'{list(tensor.shape)}' for tensor in inputs)}",
        fix="try another target, or smaller inputs if memory ran out",
    )


def message(error: Exception) -> str:
    """Returns the message of an exception without LibTorch's C++ backtrace."""
    return str(error).partition(_BACKTRACE)[0].strip()


def _outside(spec: TensorSpec, tensor: torch.Tensor) -> str | None:
    """Describes the first value of an integer input that is outside of its range. Returns None if there is none.

    A tensor on a GPU is not read, because CUDA may be unusable in this process after a failed kernel.
    """
    if not (is_integer(spec) and has_range(spec)) or tensor.device.type != "cpu":
        return None
    low = torch.iinfo(tensor.dtype).min if spec.low is None else int(spec.low)
    high = torch.iinfo(tensor.dtype).max if spec.high is None else int(spec.high)
    places = ((tensor < low) | (tensor > high)).nonzero().tolist()
    if not places:
        return None
    return f"the value {tensor[tuple(places[0])].item()} at {places[0]}, which is outside of its range {low}..{high}"

"""Allocates and advances the state that a model carries from call to call, such as a key-value cache.

An artifact may write the next state into some of its inputs, which the manifest lists. A call must not change its
inputs, so such an artifact is called with copies of them. A caller who owns the state calls `advance` instead, which
copies nothing. docs/adr/0037-state-in-place.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

from fuseconv.contract.dtypes import DTYPES
from fuseconv.contract.spec import Contract
from fuseconv.errors import UsageError
from fuseconv.targets import Runner

Tensors = tuple[torch.Tensor, ...]


class OwnedState:
    """The state of one sequence or batch, whose tensors a call of `Model.advance` may overwrite or replace.

    Attributes:
        tensors: the state by input name. On a GPU, these may be the buffers of a CUDA graph, into which a call of
            another thread may write at any time; `snapshot` returns copies.
        home: what owns these buffers. None if the tensors belong to this state alone.
        ready: the event after which the tensors have their values, if another stream wrote them.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes over the tensors, which must not be used by the caller afterwards."""
        self.tensors = dict(tensors)
        self.home: Home | None = None
        self.ready: torch.cuda.Event | None = None

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Returns copies of the tensors by input name, as they are after the last call, on the current stream."""
        if (home := self.home) is not None:
            home.release(self)
        if self.ready is not None:
            torch.cuda.current_stream().wait_event(self.ready)
        return {name: tensor.clone() for name, tensor in self.tensors.items()}


class Home(Protocol):
    """Owns buffers that hold a state."""

    def release(self, state: OwnedState) -> None:
        """Copies the state out of the buffers."""


class StateRunner:
    """Calls a runner of a method with state."""

    def __init__(self, runner: Runner, contract: Contract, in_place: Collection[str] = ()) -> None:
        """Wraps a runner.

        Args:
            runner: the runner.
            contract: the contract, which declares the state.
            in_place: the names of the state inputs into which the runner writes the next state.
        """
        self._runner = runner
        self._places = state_places(contract)
        self._in_place = [index for name, index, _ in self._places if name in in_place]

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Computes the outputs without changing the inputs."""
        if not self._in_place:
            return self._runner(*inputs)
        given = list(inputs)
        for index in self._in_place:
            given[index] = given[index].clone()
        return self._runner(*given)

    def advance(self, state: OwnedState, inputs: Sequence[torch.Tensor]) -> Tensors:
        """Computes the outputs and stores the next state in `state`.

        Args:
            state: the state.
            inputs: all inputs. Those of the state are ignored.
        """
        given = list(inputs)
        for name, index, _ in self._places:
            given[index] = state.tensors[name]
        outputs = self._runner(*given)
        state.tensors = {name: outputs[index] for name, _, index in self._places}
        return outputs


def state_places(contract: Contract) -> tuple[tuple[str, int, int], ...]:
    """Returns the name of each state input, its position, and the position of the output that is its next value."""
    return tuple((name, contract.names.index(name), contract.outputs.index(output)) for name, output in contract.state)


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

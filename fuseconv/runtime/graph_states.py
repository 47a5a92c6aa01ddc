"""Keeps states in the input buffers of CUDA graphs, so that replays that follow one another do not copy the state.

A graph reads and writes its buffers only. The state that was advanced last stays in them. When a replay needs the
buffers for another state, the state there is copied into tensors of its own first. The caller holds the lock of the
graphs, and has ordered its stream after the last use of their buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import torch

from fuseconv.contract.spec import Contract
from fuseconv.runtime.cuda_graphs import Shapes
from fuseconv.runtime.graph_capture import Graph, copier
from fuseconv.runtime.state import Home, OwnedState, state_places
from fuseconv.targets import Runner

Tensors = Sequence[torch.Tensor]


class GraphStates:
    """The states in the buffers of a model's graphs, at most one per graph. A state that nobody uses is forgotten."""

    def __init__(self, contract: Contract) -> None:
        """Starts without states. The contract declares the state inputs and outputs."""
        self._places = state_places(contract)
        self._states: WeakValueDictionary[Shapes, OwnedState] = WeakValueDictionary()
        inputs, outputs = ({place[side] for place in self._places} for side in (1, 2))
        self._others = [index for index in range(len(contract.inputs)) if index not in inputs]
        self._results = [index for index in range(len(contract.outputs)) if index not in outputs]

    def stepping(self, runner: Runner) -> Runner:
        """Returns a runner that calls a runner and then has the next state in the state inputs, for a capture."""

        def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            outputs = runner(*inputs)
            pairs = [(inputs[index], outputs[output]) for _, index, output in self._places]
            _copy_into(pairs)
            return outputs

        return step if self._places else runner

    def refill(self, places: Tensors, inputs: Tensors) -> None:
        """Writes the state inputs of a call into buffers again, because a call may have overwritten them."""
        _copy_into([(places[index], inputs[index]) for _, index, _ in self._places])

    def replay(
        self, key: Shapes, graph: Graph, state: OwnedState, inputs: Tensors, places: Tensors, home: Home
    ) -> None:
        """Replays a graph, which advances the state in its buffers.

        Args:
            key: the key of the graph.
            graph: the graph.
            state: the state, which is in the graph's buffers afterwards.
            inputs: all inputs. Those of the state are ignored.
            places: the input buffers of the graph, or the slices of them that belong to the call.
            home: what the state is told about who owns the buffers.
        """
        if self._states.get(key) is not state:
            self.release(state)
            self.evict(key)
        _copy_into([(places[index], state.tensors[name]) for name, index, _ in self._places])
        state.tensors = {name: places[index] for name, index, _ in self._places}
        state.home = home
        self._states[key] = state
        _copy_into([(places[index], inputs[index]) for index in self._others])
        graph.captured.replay()

    def results(self, outputs: Tensors, state: OwnedState) -> tuple[torch.Tensor, ...]:
        """Returns copies of the outputs of a replay. Those of the state are the tensors of the state.

        Args:
            outputs: the output buffers of the graph, or the slices of them that belong to the call.
            state: the state that was advanced.
        """
        found = list(outputs)
        for index in self._results:
            found[index] = torch.empty_like(outputs[index])
        _copy_into([(found[index], outputs[index]) for index in self._results])
        for name, _, index in self._places:
            found[index] = state.tensors[name]
        return tuple(found)

    def inputs(self, state: OwnedState, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        """Returns the inputs of a call with this state."""
        given = list(inputs)
        for name, index, _ in self._places:
            given[index] = state.tensors[name]
        return tuple(given)

    def take(self, state: OwnedState, outputs: Tensors) -> None:
        """Makes the state outputs of a call, which nothing else uses, the tensors of a state."""
        for key in self._keys_of(state):
            self.forget(key)
        state.tensors = {name: outputs[index] for name, _, index in self._places}

    def evict(self, key: Shapes) -> None:
        """Copies the state in a graph's buffers, if there is one, into tensors of its own, on the current stream."""
        state = self._states.get(key)
        if state is not None:
            state.tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
            state.ready = torch.cuda.current_stream().record_event()
            self.forget(key)  # last, because the thread of the state reads `home` without the lock

    def release(self, state: OwnedState) -> None:
        """Copies a state out of the buffers of its graph, if it is in those of a graph, on the current stream."""
        for key in self._keys_of(state):
            self.evict(key)

    def forget(self, key: Shapes) -> None:
        """Forgets the state in the buffers of a graph, whose tensors remain as they are.

        If these are the buffers, the graph must not use them any more.
        """
        state = self._states.pop(key, None)
        if state is not None:
            state.home = None

    def _keys_of(self, state: OwnedState) -> list[Shapes]:
        return [key for key, other in self._states.items() if other is state]


def wait_for(state: OwnedState, stream: torch.cuda.Stream) -> None:
    """Orders a stream after the work of another stream that moved the state, and keeps the memory while it is used."""
    if state.ready is not None:
        stream.wait_event(state.ready)
        for tensor in state.tensors.values():
            tensor.record_stream(stream)
        state.ready = None


def _copy_into(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies the second tensor of each pair into the first, unless both have the same memory."""
    different = [(place, tensor) for place, tensor in pairs if place.data_ptr() != tensor.data_ptr()]
    if different:
        places, tensors = zip(*different, strict=True)
        copier([place.dtype for place in places])(places, tensors)

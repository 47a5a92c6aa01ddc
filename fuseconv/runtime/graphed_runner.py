"""Calls a runner through CUDA graphs: one graph per input shape, for the shapes for which a replay is faster.

A replay costs the host a single launch, however many kernels the model has. docs/adr/0007-cuda-graphs.md describes
memory, threads and streams. docs/adr/0018-graph-policy.md describes which shapes are captured.
docs/adr/0037-state-in-place.md describes how a state stays in the buffers of a graph.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Sequence

import torch

from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError
from fuseconv.runtime.cuda_graphs import CudaGraphs, Shapes
from fuseconv.runtime.graph_capture import Graph, Recorder, buffers
from fuseconv.runtime.graph_payoff import WhenItPays
from fuseconv.runtime.graph_policy import AtFirstSight, Policy, Step
from fuseconv.runtime.graph_states import GraphStates, wait_for
from fuseconv.runtime.rows import batched, rows_of
from fuseconv.runtime.state import OwnedState, StateRunner
from fuseconv.runtime.stopwatch import Stopwatch
from fuseconv.targets import Runner
from fuseconv.targets.spec import turn_of

LIMIT = 64
"""The maximum number of graphs per model."""

MEMORY_SHARE = 0.1
"""The share of the free memory at load time that a model's graphs may hold, if the user sets no limit."""

WARM_UPS = 2
"""The number of warm-up calls before the first capture, because lazy loading, timing and compilation must not be
captured. TorchScript profiles in the first call and optimizes in the second. Later captures need one warm-up call each,
for their own shape."""


class GraphedRunner:
    """Wraps a runner. For each call, a policy decides whether a CUDA graph is replayed or the runner is called.

    Replays from all threads and streams are serialized, because the graphs share memory. The outputs are copies.
    """

    def __init__(
        self,
        runner: Runner,
        contract: Contract,
        in_place: Collection[str] = (),
        *,
        required: bool = False,
        limit: int = LIMIT,
        memory: int | None = None,
    ) -> None:
        """Wraps a runner on the current device.

        Args:
            runner: the runner, which computes on that device. The same shapes must always launch the same kernels.
            contract: the contract, whose buckets give the sizes to which the first axis is rounded up.
            in_place: the names of the state inputs into which the runner writes the next state.
            required: whether every shape is captured at its first call and a failed capture is an error. Otherwise,
                shapes are captured when a capture pays, and a failed capture is a warning.
            limit: the maximum number of graphs.
            memory: the maximum number of bytes that the graphs hold. Default: `MEMORY_SHARE` of the free memory.
        """
        self._runner = runner
        self._stepping = StateRunner(runner, contract, in_place)
        self._pure: Runner = self._stepping if contract.state else runner
        self._turn = turn_of(runner)
        self._states = GraphStates(contract)
        self._buckets = contract.buckets
        self._has = batched(contract, contract.buckets) if contract.buckets else (False,) * len(contract.inputs)
        self._gives = tuple(bool(contract.buckets and name in contract.buckets.outputs) for name in contract.outputs)
        self._required = required
        self._device = torch.cuda.current_device()
        self._limit = int(MEMORY_SHARE * torch.cuda.mem_get_info()[0]) if memory is None else memory
        self._policy: Policy[Shapes] = (
            AtFirstSight(limit, self._limit) if required else WhenItPays(limit, self._limit, recurs=not contract.dims())
        )
        self._recorder = Recorder(self._states.stepping(runner))
        self._watch: Stopwatch[tuple[Shapes, bool, bool]] = Stopwatch()
        self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]  # recorded when the graphs' memory is free
        self._last: torch.cuda.Stream | None = None  # the stream that last used the graphs' memory
        self._last_handle: tuple[int, ...] | None = None
        self._lock = threading.Lock()
        self._is_capturing = False
        self._warm_ups = WARM_UPS
        self._graphs: dict[Shapes, Graph] = {}
        self._failure: UpstreamError | None = None

    def status(self) -> CudaGraphs:
        """Returns the state of the CUDA graphs."""
        with self._lock:
            reason = f"{self._failure.what} ({self._failure.where})" if self._failure else None
            return CudaGraphs(tuple(tuple(map(tuple, shapes)) for shapes in self._graphs), self._held(), reason)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Computes the outputs on the current stream.

        Raises:
            UpstreamError: a capture failed, and captures are required.
        """
        policy = self._policy
        if policy.rest > 0:
            policy.rest -= 1  # if two threads race here, one decrement may be lost, which does no harm
            return self._pure(*inputs)
        if torch.cuda.current_device() == self._device:
            return self._call(inputs)
        with torch.cuda.device(self._device):
            return self._call(inputs)

    def advance(self, state: OwnedState, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Computes the outputs on the current stream and stores the next state in `state`.

        The state stays in the buffers of a graph while calls with it follow one another, and is not copied then. The
        state outputs are the tensors of the state.

        Args:
            state: the state. No other call may use it at the same time.
            inputs: all inputs. Of those of the state, only the shapes are used.

        Raises:
            UpstreamError: a capture failed, and captures are required.
        """
        home = state.home
        if home is not None and home is not self:
            home.release(state)
        with torch.cuda.device(self._device):
            if self._policy.rest > 0 and state.home is None:
                self._policy.rest -= 1
                return self._direct(inputs, state)
            return self._call(inputs, state)

    def release(self, state: OwnedState) -> None:
        """Copies a state out of the buffers of a graph, on the current stream. Does nothing if it is not in them."""
        with torch.cuda.device(self._device), self._lock:
            stream = self._current_stream()
            self._take_turn(stream)
            self._states.release(state)
            self._free.record(stream)

    def _direct(self, inputs: tuple[torch.Tensor, ...], state: OwnedState | None) -> tuple[torch.Tensor, ...]:
        """Calls the runner, which advances the state if there is one."""
        if state is None:
            return self._pure(*inputs)
        wait_for(state, torch.cuda.current_stream())
        return self._stepping.advance(state, inputs)

    def _call(self, inputs: tuple[torch.Tensor, ...], state: OwnedState | None = None) -> tuple[torch.Tensor, ...]:
        """Makes one call as the policy decides. Calls the runner directly if the caller is capturing a graph."""
        at = time.perf_counter()
        if torch.cuda.is_current_stream_capturing():
            return self._direct(inputs, state)
        rows = padded = 0
        if self._buckets is None:
            shapes: Shapes = tuple([x.shape for x in inputs])
        else:
            rows = rows_of(inputs, self._has)
            padded = self._buckets.rounded(rows)
            shapes = tuple(
                [(padded, *x.shape[1:]) if has else x.shape for x, has in zip(inputs, self._has, strict=True)]
            )
        if not self._lock.acquire(blocking=False):
            if self._is_capturing and not self._required and (state is None or state.home is None):
                return self._direct(inputs, state)  # a capture takes longer than a direct call
            self._lock.acquire()
        try:
            stream = self._current_stream()
            if self._watch.ended:
                self._report()
            contended = stream is not self._last and not self._free.query()  # type: ignore[no-untyped-call]
            step = self._policy.step(shapes, contended)
            if step is Step.REPLAY:
                return self._replay(shapes, inputs, rows, stream, state)
            if step is Step.TIMED_REPLAY:
                begun = self._watch.begin(stream, at)
                outputs = self._replay(shapes, inputs, rows, stream, state)
                self._watch.end(begun, (shapes, contended, True))
                return outputs
            if step is Step.DROP_ALL:
                self._drop(tuple(self._graphs))
            elif step is Step.CAPTURE:
                if self._failure is None:
                    return self._capture(shapes, inputs, rows, padded, stream, state)
                if self._required:
                    raise self._failure
            if state is not None and state.home is self:  # the call uses the buffers of a graph
                self._take_turn(stream)
                try:
                    return self._timed(step, shapes, contended, inputs, stream, state)
                finally:
                    self._free.record(stream)
        finally:
            self._lock.release()
        return self._timed(step, shapes, contended, inputs, stream, state)

    def _timed(
        self,
        step: Step,
        shapes: Shapes,
        contended: bool,
        inputs: tuple[torch.Tensor, ...],
        stream: torch.cuda.Stream,
        state: OwnedState | None,
    ) -> tuple[torch.Tensor, ...]:
        """Calls the runner directly, and measures the time if the policy wants it, without the wait for other calls."""
        if step is not Step.TIMED_DIRECT:
            return self._direct(inputs, state)
        with self._turn:
            begun = self._watch.begin(stream)
            outputs = self._direct(inputs, state)
            self._watch.end(begun, (shapes, contended, False))
        return outputs

    def _report(self) -> None:
        """Reports the times of finished timed calls to the policy, and drops the graphs that the policy rejects."""
        for (key, contended, replayed), seconds in self._watch.finished():
            if self._policy.timed(key, contended, replayed, seconds):
                self._drop((key,))

    def _replay(
        self,
        shapes: Shapes,
        inputs: Sequence[torch.Tensor],
        rows: int,
        stream: torch.cuda.Stream,
        state: OwnedState | None,
    ) -> tuple[torch.Tensor, ...]:
        """Copies the inputs into the graph's buffers, replays the graph, and returns copies of its outputs.

        A state that is advanced stays in the buffers. The padding rows of the buffers keep old values, which have no
        effect because the model never mixes rows.
        """
        graph = self._graphs[shapes]
        self._take_turn(stream)
        if stream.cuda_stream not in graph.streams:
            graph.used_on(stream)
        try:
            places: Sequence[torch.Tensor] = graph.inputs
            if rows:
                places = [x[:rows] if has else x for x, has in zip(places, self._has, strict=True)]
            if state is not None:
                wait_for(state, stream)
                self._states.replay(shapes, graph, state, inputs, places, self)
                return self._states.results(self._without_padding(graph.outputs, rows), state)
            if self._pure is self._stepping:
                self._states.evict(shapes)
            graph.copy_inputs(places, inputs)
            graph.captured.replay()
            outputs = self._without_padding(graph.outputs, rows)
            if len(outputs) == 1:
                return (outputs[0].clone(),)
            copies = tuple([torch.empty_like(x) for x in outputs])
            graph.copy_outputs(copies, outputs)
            return copies
        finally:
            self._free.record(stream)

    def _capture(
        self,
        shapes: Shapes,
        inputs: tuple[torch.Tensor, ...],
        rows: int,
        padded: int,
        stream: torch.cuda.Stream,
        state: OwnedState | None,
    ) -> tuple[torch.Tensor, ...]:
        """Calls the runner directly, which also warms it up, and then captures a call if the graph has room."""
        self._take_turn(stream)
        try:
            if state is not None:
                wait_for(state, stream)
                inputs = self._states.inputs(state, inputs)
            # A graph outlives the current call, so it must not depend on the caller's grad and autocast modes.
            with torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False):
                places = buffers(inputs, self._has, padded)
                for count in range(self._warm_ups):
                    if count > 0:
                        self._states.refill(places, buffers(inputs, self._has, padded))
                    outputs = self._runner(*places)
                self._warm_ups = 1
                size = sum({x.data_ptr(): x.nbytes for x in (*places, *outputs)}.values())  # state outputs are inputs
                dropped = self._policy.room(shapes, size)
                if dropped is not None:
                    self._drop(dropped)
                    self._record(shapes, size, places, stream)
            # The outputs may be views of the input buffers.
            results = tuple([x.clone() for x in self._without_padding(outputs, rows)])
            if state is not None:
                self._states.take(state, results)
            return results
        finally:
            self._free.record(stream)

    def _record(self, shapes: Shapes, size: int, places: tuple[torch.Tensor, ...], stream: torch.cuda.Stream) -> None:
        """Captures a call with these input buffers and stores the graph. Drops all graphs at the memory limit."""
        at, self._is_capturing = time.perf_counter(), True
        try:
            graph = self._recorder.record(places)
        except RuntimeError as error:
            self._give_up(error, places)
            return
        finally:
            self._is_capturing = False
        graph.streams.add(stream.cuda_stream)
        self._graphs[shapes] = graph
        held = self._held()
        if self._policy.captured(shapes, size, held, time.perf_counter() - at):
            return
        is_alone = len(self._graphs) == 1
        self._drop(tuple(self._graphs))  # torch frees the memory of a pool only as a whole
        if is_alone and self._required:
            raise UpstreamError(
                f"the CUDA graph of the call holds {held} bytes, but the limit is {self._limit}",
                where=_where(places),
                fix="raise cuda_graphs_memory, or load with cuda_graphs='auto' or False",
            )

    def _current_stream(self) -> torch.cuda.Stream:
        """Returns the current stream. Reuses the stream object of the last replay if the stream has not changed."""
        is_last = torch._C._cuda_getCurrentStream(self._device) == self._last_handle
        return self._last if is_last and self._last is not None else torch.cuda.current_stream()

    def _take_turn(self, stream: torch.cuda.Stream) -> None:
        """Makes a stream wait until the last use of the graphs' memory ends, unless that use was on the same stream."""
        if stream is not self._last:
            stream.wait_event(self._free)
            self._last, self._last_handle = stream, torch._C._cuda_getCurrentStream(self._device)

    def _without_padding(self, outputs: Sequence[torch.Tensor], rows: int) -> Sequence[torch.Tensor]:
        """Returns the first `rows` rows of each batched output. Returns all outputs unchanged if `rows` is 0."""
        return [x[:rows] if has else x for x, has in zip(outputs, self._gives, strict=True)] if rows else outputs

    def _held(self) -> int:
        """Returns the GPU memory of the graphs in bytes: input buffers, outputs and intermediate values."""
        if not self._graphs:
            return 0
        return self._recorder.bytes() + sum(graph.input_bytes() for graph in self._graphs.values())

    def _drop(self, dropped: Iterable[object]) -> None:
        """Waits until the last launch of any graph has finished, and then drops the graphs with these keys."""
        keys = [key for key in self._graphs if key in set(dropped)]
        if keys:
            self._free.synchronize()
            for key in keys:
                self._states.forget(key)
                del self._graphs[key]
            if not self._graphs:
                self._recorder.renew()

    def _give_up(self, error: RuntimeError, places: Sequence[torch.Tensor]) -> None:
        """Disables all captures after a failed one, because an unsupported op or a lack of memory would recur.

        Raises:
            UpstreamError: captures are required. Otherwise, emits a RuntimeWarning.
        """
        self._failure = UpstreamError(
            f"the model cannot be captured in a CUDA graph: {error}",
            where=_where(places),
            fix="load with cuda_graphs='auto' or False",
        )
        if self._required:
            raise self._failure
        if not self._graphs:
            self._policy.rest = sys.maxsize
        warnings.warn(f"{self._failure.what}; it runs without CUDA graphs", RuntimeWarning, stacklevel=2)


def _where(tensors: Sequence[torch.Tensor]) -> str:
    """Returns the location for error messages: a call with inputs of these shapes."""
    return f"a call with {', '.join(f'{list(x.shape)}' for x in tensors)}"

"""Calls a runner through CUDA graphs: one graph per shape, captured on the first calls. The most recent ones are kept.

A replay costs the host a single launch, however many kernels the model has. docs/adr/0007-cuda-graphs.md describes
memory, threads and streams.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch

from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError, UsageError
from fuseconv.runtime.recent import Recent
from fuseconv.runtime.rows import batched, repeated, rows_of
from fuseconv.targets import TARGETS, Runner

Choice = Literal["auto"] | bool
Shapes = tuple[tuple[int, ...], ...]

CAPTURED = tuple(sorted(name for name, target in TARGETS.items() if target.SPEC.cuda_graphs))
"""The targets that can be captured. ONNX Runtime has its own CUDA graphs, and torch.export programs can be compiled."""

LIMIT = 16
"""The maximum number of graphs per model. Each has its own inputs and outputs; intermediate memory is shared."""

WARM_UPS = 2
"""The number of calls before the capture, because lazy loading, timing and compilation must not be captured.
TorchScript profiles in the first call and optimizes in the second."""

_CAPTURING = threading.Lock()
"""torch allows only one capture at a time per process."""

_ABANDONED: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed. They are kept alive because torch's allocators may refer to them until the process
exits."""


@dataclass(frozen=True)
class CudaGraphs:
    """The state of the CUDA graphs of a model.

    Attributes:
        shapes: the shapes of the inputs of each graph, padded to their bucket, least recently used first.
        memory: the GPU memory of the graphs in bytes: inputs, outputs and intermediate values.
        reason: why calls are not captured. None if they are.
    """

    shapes: tuple[Shapes, ...]
    memory: int
    reason: str | None


def ungraphed_reason(choice: Choice, device: str, target: str) -> str | None:
    """Returns the reason why a target runs without CUDA graphs, or None if it is captured.

    Args:
        choice: `auto`, True or False.
        device: the device of the contract.
        target: the name of the target.

    Raises:
        UsageError: the choice is none of these, or it is True and capturing is not possible.
    """
    if choice not in ("auto", True, False):
        raise UsageError(f"cuda_graphs is {choice!r}", where=f"cuda_graphs={choice!r}", fix="use 'auto', True or False")
    if not choice:
        return "cuda_graphs is False"
    if device != "cuda":
        reason, fix = f"the bundle is for {device}", "convert with --device cuda, or do not set cuda_graphs"
    elif target not in CAPTURED:
        reason, fix = (
            f"the target {target} does not support CUDA graphs",
            f"use {' or '.join(CAPTURED)}, or do not set cuda_graphs",
        )
    else:
        return None
    if choice != "auto":
        raise UsageError(f"CUDA graphs cannot be used: {reason}", where="cuda_graphs", fix=fix)
    return reason


@dataclass(frozen=True)
class _Graph:
    """The captured graph of one input shape.

    Attributes:
        inputs: the input buffers. They are not in the memory shared by the graphs, because their padding must persist.
        stream: the stream on which the memory is allocated.
        captured: the CUDA graph.
        outputs: the output buffers, valid until the next launch of any graph.
    """

    inputs: tuple[torch.Tensor, ...]
    stream: torch.cuda.Stream
    captured: torch.cuda.CUDAGraph
    outputs: tuple[torch.Tensor, ...]


class GraphedRunner:
    """A runner that replays another runner from CUDA graphs.

    Calls from any thread and stream are serialized, because the graphs share memory. The outputs are copies.
    """

    def __init__(self, runner: Runner, contract: Contract, *, required: bool = False, limit: int = LIMIT) -> None:
        """Wraps a runner on the current device.

        Args:
            runner: computes on that device. The same shapes must always launch the same kernels.
            contract: its buckets give the sizes to which the first axis is rounded up.
            required: whether a failed capture is an error. Otherwise it is a warning.
            limit: the maximum number of graphs.
        """
        self._runner = runner
        self._buckets = contract.buckets
        self._has = batched(contract, contract.buckets) if contract.buckets else (False,) * len(contract.inputs)
        self._gives = tuple(bool(contract.buckets and name in contract.buckets.outputs) for name in contract.outputs)
        self._required = required
        self._device = torch.cuda.current_device()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of captures alone: nothing runs on it
        self._pool = torch.cuda.graph_pool_handle()
        self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]  # when the memory of the graphs is
        self._lock = threading.Lock()
        self._graphs: Recent[Shapes, _Graph] = Recent(limit)
        self._failure: UpstreamError | None = None

    def status(self) -> CudaGraphs:
        """Returns the state of the CUDA graphs."""
        with self._lock:
            graphs = self._graphs.items()
            segments = torch.cuda.memory_snapshot(self._pool) if graphs else []  # type: ignore[no-untyped-call]
            memory = sum(segment["total_size"] for segment in segments)
            memory += sum(x.nbytes for _, graph in graphs for x in graph.inputs)
            reason = f"{self._failure.what} ({self._failure.where})" if self._failure else None
            return CudaGraphs(tuple(tuple(map(tuple, shapes)) for shapes, _ in graphs), memory, reason)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Computes the outputs on the current stream.

        Raises:
            UpstreamError: the capture failed and is required.
        """
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                return self._runner(*inputs)
            rows, padded = self._sizes(inputs)
            shapes = tuple(
                [(padded, *x.shape[1:]) if has else x.shape for x, has in zip(inputs, self._has, strict=True)]
            )
            stream = torch.cuda.current_stream()
            with self._lock:
                stream.wait_event(self._free)
                try:
                    graph = self._found(shapes, inputs, padded, stream)
                    if graph is not None:
                        return self._replay(graph, inputs, rows, stream)
                finally:
                    self._free.record(stream)
            return self._runner(*inputs)

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Returns the number of rows of a call, without and with padding."""
        if self._buckets is None:
            return 0, 0
        rows = rows_of(inputs, self._has)
        return rows, self._buckets.rounded(rows)

    def _replay(
        self, graph: _Graph, inputs: Sequence[torch.Tensor], rows: int, stream: torch.cuda.Stream
    ) -> tuple[torch.Tensor, ...]:
        """Replays a graph. Old padding is kept: the model does not mix rows, so its values have no effect."""
        places, outputs = list(graph.inputs), list(graph.outputs)
        if stream != graph.stream:
            for place in places:
                place.record_stream(stream)
        if rows:
            places = [x[:rows] if has else x for x, has in zip(places, self._has, strict=True)]
            outputs = [x[:rows] if has else x for x, has in zip(outputs, self._gives, strict=True)]
        if places:
            torch._foreach_copy_(places, list(inputs))
        graph.captured.replay()
        return tuple([output.clone() for output in outputs])

    def _found(
        self, shapes: Shapes, inputs: Sequence[torch.Tensor], padded: int, stream: torch.cuda.Stream
    ) -> _Graph | None:
        """Returns the graph for a shape, capturing it if it is new. None if that is not possible."""
        graph = self._graphs.get(shapes)
        if graph is None and self._failure is None:
            graph = self._capture(inputs, padded, stream)
            # Dropped after the capture, because a pool without graphs is freed, and while no launch is running.
            dropped = self._graphs.put(shapes, graph) if graph is not None else None
            if dropped is not None:
                self._free.synchronize()
        if graph is None and self._required and self._failure is not None:
            raise self._failure
        return graph

    def _capture(self, inputs: Sequence[torch.Tensor], padded: int, stream: torch.cuda.Stream) -> _Graph | None:
        # A graph outlives the modes of the call in which it is captured.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False):
            places = tuple(
                repeated(x, padded if has else len(x)) if x.dim() else x.clone()
                for x, has in zip(inputs, self._has, strict=True)
            )
            for _ in range(WARM_UPS):
                self._runner(*places)
            captured = torch.cuda.CUDAGraph()
            try:
                return _Graph(places, stream, captured, self._record(captured, places))
            except RuntimeError as error:
                self._give_up(captured, error.__context__ or error, inputs)
                return None

    def _record(self, captured: torch.cuda.CUDAGraph, places: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        with _CAPTURING, torch.cuda.stream(self._stream):
            # Other threads may meanwhile do what is not allowed during a capture, such as allocating memory.
            captured.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                return tuple(self._runner(*places))
            finally:
                captured.capture_end()

    def _give_up(self, captured: torch.cuda.CUDAGraph, error: BaseException, inputs: Sequence[torch.Tensor]) -> None:
        """Disables captures: an unsupported op fails for every shape, and insufficient memory remains insufficient."""
        _ABANDONED.append(captured)
        with suppress(RuntimeError):  # if torch did not do it
            torch._C._cuda_endAllocateToPool(self._device, self._pool)
        # torch leaves its generator in the capture state and would reject every later random number.
        generator = torch.cuda.default_generators[self._device]
        generator.graphsafe_set_state(generator.clone_state())
        self._failure = UpstreamError(
            f"the model cannot be captured in a CUDA graph: {error}",
            where=f"a call with {', '.join(f'{list(x.shape)}' for x in inputs)}",
            fix="load with cuda_graphs='auto' or False",
        )
        if not self._required:
            warnings.warn(f"{self._failure.what}; it runs without CUDA graphs", RuntimeWarning, stacklevel=2)

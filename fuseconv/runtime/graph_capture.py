"""Captures a call of a runner in a CUDA graph, and holds the graph with its buffers.

docs/adr/0007-cuda-graphs.md describes memory, threads and streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from fuseconv.runtime.rows import repeated
from fuseconv.targets import Runner

_CAPTURING = threading.Lock()
"""The lock for captures. torch allows only one capture at a time per process."""

_ABANDONED: list[torch.cuda.CUDAGraph] = []
"""The graphs whose capture failed. They stay alive because torch's allocators may refer to them until the process
exits."""

Copy = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]


@dataclass(frozen=True)
class Graph:
    """The captured graph of one input shape.

    Attributes:
        inputs: the input buffers. They are outside the memory pool, because their padding must persist between replays.
        outputs: the output buffers, valid until the next launch of any graph.
        captured: the CUDA graph.
        copy_inputs: copies the inputs of a call into the input buffers or slices of them.
        copy_outputs: copies the output buffers or slices of them into other tensors.
        streams: the handles of the CUDA streams that are registered with the allocator as users of the input buffers.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    captured: torch.cuda.CUDAGraph
    copy_inputs: Copy
    copy_outputs: Copy
    streams: set[int] = field(default_factory=set)

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Registers a stream, so that the allocator reuses the input buffers only after the stream's work is done.

        One call per stream is enough.
        """
        for place in self.inputs:
            place.record_stream(stream)
        self.streams.add(stream.cuda_stream)

    def input_bytes(self) -> int:
        """Returns the total size of the input buffers in bytes."""
        return sum(place.nbytes for place in self.inputs)


def copier(dtypes: Sequence[torch.dtype]) -> Copy:
    """Returns a function that copies tensors of these dtypes into other tensors, one launch per distinct dtype."""
    if len(set(dtypes)) <= 1:
        return _copy_alike if dtypes else lambda _places, _tensors: None
    groups = [[i for i, dtype in enumerate(dtypes) if dtype == kind] for kind in dict.fromkeys(dtypes)]

    def copy(places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        for group in groups:
            torch._foreach_copy_([places[i] for i in group], [tensors[i] for i in group])

    return copy


def _copy_alike(places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    torch._foreach_copy_(places, tensors)  # type: ignore[arg-type]


def buffers(inputs: Sequence[torch.Tensor], has: Sequence[bool], padded: int) -> tuple[torch.Tensor, ...]:
    """Returns contiguous copies of a call's inputs, the input buffers of a graph.

    Args:
        inputs: the inputs of the call.
        has: for each input, whether its first axis is the batch. Such inputs are padded.
        padded: the number of rows of the padded inputs.
    """
    return tuple(
        repeated(x, padded if rows else len(x)) if x.dim() else x.clone() for x, rows in zip(inputs, has, strict=True)
    )


class Recorder:
    """Captures calls of a runner on the current device, all in one memory pool.

    Attributes:
        pool: the handle of the memory pool. torch frees the pool together with the last graph in the pool. Call `renew`
            afterwards.
    """

    def __init__(self, runner: Runner) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._runner = runner
        self._device = torch.cuda.current_device()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # for captures only: no work runs on this stream

    def renew(self) -> None:
        """Switches to a new memory pool for the next captures."""
        self.pool = torch.cuda.graph_pool_handle()

    def bytes(self) -> int:
        """Returns the size of the pool in bytes. The pool must hold at least one graph."""
        segments = torch.cuda.memory_snapshot(self.pool)  # type: ignore[no-untyped-call]
        return sum(int(segment["total_size"]) for segment in segments)

    def record(self, places: tuple[torch.Tensor, ...]) -> Graph:
        """Captures a call of the runner with these input buffers, and returns its graph.

        Raises:
            RuntimeError: an operation cannot be captured, or memory ran out.
        """
        captured = torch.cuda.CUDAGraph()
        try:
            with _CAPTURING, torch.cuda.stream(self._stream):
                # `thread_local` lets other threads do what a capture forbids, such as allocating memory.
                captured.capture_begin(self.pool, capture_error_mode="thread_local")
                try:
                    outputs = tuple(self._runner(*places))
                finally:
                    captured.capture_end()
        except RuntimeError as error:
            self._recover(captured)
            # The exception from `capture_end` says only that the capture is invalid. The exception's context says why.
            raise RuntimeError(str(error.__context__ or error)) from error
        copy_inputs, copy_outputs = (copier([x.dtype for x in tensors]) for tensors in (places, outputs))
        return Graph(places, outputs, captured, copy_inputs, copy_outputs)

    def _recover(self, captured: torch.cuda.CUDAGraph) -> None:
        """Makes torch's allocator and random generator usable again after a failed capture."""
        _ABANDONED.append(captured)
        with suppress(RuntimeError):  # this exception means that torch has already ended the allocation to the pool
            torch._C._cuda_endAllocateToPool(self._device, self.pool)
        # torch leaves its generator in the capture state, in which it would refuse to generate random numbers.
        generator = torch.cuda.default_generators[self._device]
        generator.graphsafe_set_state(generator.clone_state())

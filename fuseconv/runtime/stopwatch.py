"""Times calls on CUDA streams without ever waiting for them.

A call takes the longer one of two times: that of the host until it has launched the call, and that of the device
between an event before and one after it. If callers wait for each call, this is about their latency; if they do not, it
is what the call adds to a queue, on whichever side is slower.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Begun:
    """A call that was begun.

    Attributes:
        stream: the stream on which it runs.
        at: when the host began it.
        event: recorded when the device does.
    """

    stream: torch.cuda.Stream
    at: float
    event: torch.cuda.Event


class Stopwatch(Generic[T]):
    """Times calls, each known by a value. Any thread may begin and end them.

    Attributes:
        ended: the calls that the host has launched, and of which `finished` has not told yet.
    """

    def __init__(self) -> None:
        self.ended: deque[tuple[T, float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self, stream: torch.cuda.Stream, at: float | None = None) -> Begun:
        """Begins a call on a stream, now or at an earlier time of `time.perf_counter`."""
        return Begun(stream, time.perf_counter() if at is None else at, _recorded(stream))

    def end(self, begun: Begun, value: T) -> None:
        """Ends a call after its last launch."""
        seconds = time.perf_counter() - begun.at
        self.ended.append((value, seconds, begun.event, _recorded(begun.stream)))

    def finished(self) -> Iterator[tuple[T, float]]:
        """Yields the values and seconds of calls that the device has finished since, in order. One thread may ask."""
        while self.ended and self.ended[0][-1].query():  # type: ignore[no-untyped-call]
            value, host, begun, ended = self.ended.popleft()
            yield value, max(host, begun.elapsed_time(ended) / 1e3)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event

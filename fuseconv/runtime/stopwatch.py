"""Times calls on CUDA streams without ever waiting for the calls.

The time of a call is the longer of two times: the host time until the call's last launch, and the device time between
an event before the call and an event after it. For callers that wait for each call, this is about the latency. For
callers that do not wait, it is the time that the call adds to the queue of the host or the device, whichever is slower.
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
    """A call that has begun.

    Attributes:
        stream: the stream on which the call runs.
        at: the `time.perf_counter` time in seconds at which the host began the call.
        event: the event that the device records when it begins the call.
    """

    stream: torch.cuda.Stream
    at: float
    event: torch.cuda.Event


class Stopwatch(Generic[T]):
    """Times calls. The caller identifies each call by a value of its own. Any thread may begin and end calls.

    Attributes:
        ended: the calls that the host has launched and that `finished` has not yielded yet.
    """

    def __init__(self) -> None:
        self.ended: deque[tuple[T, float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self, stream: torch.cuda.Stream, at: float | None = None) -> Begun:
        """Marks the beginning of a call on a stream, now or at an earlier `time.perf_counter` time."""
        return Begun(stream, time.perf_counter() if at is None else at, _recorded(stream))

    def end(self, begun: Begun, value: T) -> None:
        """Marks the end of a call. Must be called after the call's last launch."""
        seconds = time.perf_counter() - begun.at
        self.ended.append((value, seconds, begun.event, _recorded(begun.stream)))

    def finished(self) -> Iterator[tuple[T, float]]:
        """Yields the value and seconds of each newly finished call, in order. Only one thread at a time may iterate."""
        while self.ended and self.ended[0][-1].query():  # type: ignore[no-untyped-call]
            value, host, begun, ended = self.ended.popleft()
            yield value, max(host, begun.elapsed_time(ended) / 1e3)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Records a new timing event on a stream and returns the event."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event

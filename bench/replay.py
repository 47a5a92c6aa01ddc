"""Replays traffic against a server, and what its latencies amount to."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from record import Row
from traffic import IDLE_SECONDS, Size, Traffic
from zoo_parts import Inputs

SKIPPED = 2
"""The calls that `relative` leaves out: TorchScript optimises in the second call of a process."""


@dataclass(frozen=True)
class Latencies:
    """How long calls took.

    Attributes:
        seconds: wall clock of each call, in the order in which they began.
        busy: wall clock of all of them, without pauses.
    """

    seconds: tuple[float, ...]
    busy: float

    def figures(self) -> Row:
        """Returns the figures of a row."""
        return {
            "p50_us": _microseconds(statistics.median(self.seconds)),
            "p99_us": _microseconds(percentile(self.seconds, 99)),
            "worst_us": _microseconds(max(self.seconds)),
            "first_us": _microseconds(self.seconds[0]),
            "calls_per_s": round(len(self.seconds) / self.busy, 1),
        }

    def relative(self, warm: Latencies) -> Row:
        """Returns p50 and p99 from the third call on, as multiples of the warm p50 of the same calls."""
        later, again = self.seconds[SKIPPED:], warm.seconds[SKIPPED:]
        p50 = statistics.median(again)
        return {
            "warm_p50_us": _microseconds(p50),
            "warm_p99_us": _microseconds(percentile(again, 99)),
            "p50_of_warm": round(statistics.median(later) / p50, 3),
            "p99_of_warm": round(percentile(later, 99) / p50, 3),
        }

    def of_pairs(self) -> Row:
        """Returns the median latencies of `traffic.paired`, of new and of known sizes; empty if there was no pair."""
        if not self.seconds:
            return {}
        new, known = (statistics.median(self.seconds[first::2]) for first in (0, 1))
        return {
            "new_p50_us": _microseconds(new),
            "known_p50_us": _microseconds(known),
            "new_of_known": round(new / known, 3),
        }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the least value that so many percent of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def replayed(call: Callable[..., Any], traffic: Traffic, inputs: Mapping[Size, Inputs], device: str) -> Latencies:
    """Makes the calls, awaits each, and returns their latencies; of several threads each has a stream of its own."""
    together = threading.Barrier(traffic.threads)

    def work(sizes: Sequence[Size]) -> list[tuple[float, float]]:
        times = []
        with torch.no_grad(), _stream(device, traffic.threads) as stream:
            together.wait()
            for number, size in enumerate(sizes):
                if traffic.burst and number % traffic.burst == 0:
                    time.sleep(IDLE_SECONDS)
                start = time.perf_counter()
                call(*inputs[size])
                if stream is not None:
                    stream.synchronize()
                times.append((start, time.perf_counter() - start))
        return times

    shares = [traffic.sizes[first :: traffic.threads] for first in range(traffic.threads)]
    with ThreadPoolExecutor(traffic.threads) as pool:
        run = pool.map if traffic.threads > 1 else map
        times = sorted(itertools.chain.from_iterable(run(work, shares)))
    seconds = tuple(taken for _, taken in times)
    if not times:
        return Latencies((), 0.0)
    wall = max(start + taken for start, taken in times) - times[0][0]
    return Latencies(seconds, wall if traffic.threads > 1 else sum(seconds))


@contextlib.contextmanager
def _stream(device: str, threads: int) -> Any:
    """Gives the stream of a thread: the default one if it is the only thread; None on the CPU."""
    if device == "cpu":
        yield None
        return
    stream = torch.cuda.Stream() if threads > 1 else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        yield stream

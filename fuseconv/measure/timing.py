"""Measures the latency of calls in interleaved rounds, so that a drift of the machine affects all calls equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Calls = Mapping[str, Callable[[], object]]


def interleaved(calls: Calls, *, rounds: int = 15, warmup: int = 3) -> dict[str, float]:
    """Returns the median time of each call, by name, in milliseconds. Takes the same arguments as `samples`."""
    return {name: statistics.median(taken) for name, taken in samples(calls, rounds=rounds, warmup=warmup).items()}


def samples(calls: Calls, *, rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Returns the time of each call in each timed round, by name, in milliseconds. A round makes each call once.

    Args:
        calls: the calls by name, as functions without arguments.
        rounds: the number of timed rounds. If it is odd, the median is a measured time.
        warmup: the number of untimed rounds at the start, for caches and lazy initialization.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            synchronise()
            start = time.perf_counter()
            call()
            synchronise()
            if number >= warmup:
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def synchronise() -> None:
    """Waits until the GPU has finished all its work. Does nothing without a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()

"""Wall-clock latency of calls, interleaved: every round runs each call once, so that drift hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Calls = Mapping[str, Callable[[], object]]


def interleaved(calls: Calls, *, rounds: int = 15, warmup: int = 3) -> dict[str, float]:
    """Returns the median time of each call, in milliseconds; arguments as of `samples`."""
    return {name: statistics.median(taken) for name, taken in samples(calls, rounds=rounds, warmup=warmup).items()}


def samples(calls: Calls, *, rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Returns what each call took in each round, in milliseconds.

    Args:
        calls: name to a call without arguments.
        rounds: timed rounds; the median of an odd number is a time that was measured.
        warmup: untimed rounds first, where caches fill and lazy work is done.
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
    """Waits for what was given to the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()

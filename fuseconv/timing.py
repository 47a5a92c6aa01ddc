"""Wall-clock latency of calls, interleaved: every round runs each call once, so that drift hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int = 15, warmup: int = 3) -> dict[str, float]:
    """Returns the median time of each call, in milliseconds.

    Args:
        calls: name to a call without arguments.
        rounds: timed rounds; the median of an odd number is a time that was measured.
        warmup: untimed rounds first, where caches fill and lazy work is done.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            _synchronise()
            start = time.perf_counter()
            call()
            _synchronise()
            if number >= warmup:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(measured) for name, measured in times.items()}


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

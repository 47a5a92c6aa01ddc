"""Chooses few kernels for the sizes of each family of problems, of those that are equally fast.

The fastest tactic changes from size to size by chance, where several differ by less than their noise. CUDA loads a
kernel when it is first called, in milliseconds, so a model that calls another kernel at each size is slow at each new
size.
"""

from __future__ import annotations

from collections import Counter

Problems = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Family of problems to size to tactic to its time: the content of tuning.json."""

EQUAL = 1.02
"""A tactic that takes at most this many times the time of the fastest one is as good."""

_ASKS = "aten"
"""The tactic for which torch asks cuBLAS at each new size, and may get a kernel that was not called before."""

_ASKS_IF = 1.1
"""It is taken only where the best other one takes this many times its time."""


def few_kernels(problems: Problems) -> Problems:
    """Returns the problems with those tactics only that few_of chooses. A family of one size keeps all of its own."""
    return {family: _kept(sizes) if len(sizes) > 1 else sizes for family, sizes in problems.items()}


def few_of(sizes: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Returns tactics of which each size has one that is as good as its fastest.

    The tactic that serves most of the remaining sizes is chosen first (a greedy set cover), of equals the one that
    needs less time at them. What asks cuBLAS at each new size serves only those where nothing else is nearly as good.
    """
    chosen: list[str] = []
    left = {size: good for size, times in sizes.items() if (good := _good(times))}
    while left:
        served = Counter(tactic for good in left.values() for tactic in good)
        excess = {tactic: sum(good.get(tactic, 0.0) for good in left.values()) for tactic in served}
        chosen.append(min(served, key=lambda tactic: (-served[tactic], excess[tactic], tactic)))
        left = {size: good for size, good in left.items() if chosen[-1] not in good}
    return chosen


def _good(times: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the tactics that are as good as the fastest, with their times divided by its time."""
    by_name = {tactic: time["us"] for tactic, time in times.items()}
    others = {tactic: us for tactic, us in by_name.items() if tactic != _ASKS}
    if others and min(others.values()) < _ASKS_IF * min(by_name.values()):
        by_name = others
    fastest = min(by_name.values(), default=0.0)
    return {tactic: us / fastest for tactic, us in by_name.items() if us <= EQUAL * fastest}


def _kept(sizes: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    chosen = set(few_of(sizes))
    return {
        size: {name: time for name, time in times.items() if name in chosen and (name != _ASKS or name in _good(times))}
        for size, times in sizes.items()
    }

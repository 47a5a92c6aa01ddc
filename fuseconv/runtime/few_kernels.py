"""Chooses a few tactics that serve all sizes of a problem family at almost the best speed.

A tactic is a kernel choice for one problem: a backend and its configuration. A family is all problems that differ only
in one size.

Where several tactics differ by less than the measurement noise, the fastest one changes from size to size by chance.
CUDA loads a kernel at its first launch, which takes milliseconds. A model that launches a different kernel at each size
is therefore slow at each new size.
"""

from __future__ import annotations

from collections import Counter

Problems = dict[str, dict[str, dict[str, dict[str, float]]]]
"""The problems in tuning.json. They map a problem family to its sizes, a size to its tactics, and a tactic to its
measurement, whose key `us` gives the time in microseconds."""

EQUAL = 1.02
"""A tactic counts as equally good if its time is at most this multiple of the fastest tactic's time."""

_ASKS = "aten"
"""The tactic that calls torch. At each new size, torch asks cuBLAS for a kernel, which may be one that was never
launched before."""

_ASKS_IF = 1.1
"""The tactic `_ASKS` is used only where the best other tactic takes at least this multiple of the fastest time."""


def few_kernels(problems: Problems) -> Problems:
    """Returns the problems with only the tactics that `few_of` chooses. A family with one size keeps all tactics."""
    return {family: _kept(sizes) if len(sizes) > 1 else sizes for family, sizes in problems.items()}


def few_of(sizes: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Returns a small set of tactics that serves every size.

    A tactic serves a size if its time there is at most `EQUAL` times the fastest time. The tactic `_ASKS` serves only
    the sizes at which every other tactic takes at least `_ASKS_IF` times the fastest time. The choice is a greedy set
    cover: each step chooses the tactic that serves the most remaining sizes. Among tactics that serve equally many, it
    chooses the one with the smallest sum of relative times, each divided by the fastest time at the same size.
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
    """Returns the tactics that serve one size, as in `few_of`, each with its time divided by the fastest time."""
    by_name = {tactic: time["us"] for tactic, time in times.items()}
    others = {tactic: us for tactic, us in by_name.items() if tactic != _ASKS}
    if others and min(others.values()) < _ASKS_IF * min(by_name.values()):
        by_name = others
    fastest = min(by_name.values(), default=0.0)
    return {tactic: us / fastest for tactic, us in by_name.items() if us <= EQUAL * fastest}


def _kept(sizes: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns, for each size of a family, the chosen tactics. `_ASKS` is kept only at the sizes that it serves."""
    chosen = set(few_of(sizes))
    return {
        size: {name: time for name, time in times.items() if name in chosen and (name != _ASKS or name in _good(times))}
        for size, times in sizes.items()
    }

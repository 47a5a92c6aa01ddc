"""Decides whether replays or direct calls are faster by timing both in turn. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLES = 5
"""The number of timed calls of each kind, direct calls and replays."""

FAST, SLOW = 1, 3
"""The positions in the sorted times that are compared: a fairly fast direct call with a fairly slow replay. This
ignores interruptions, and noise alone does not make a graph win."""

GAIN = 0.98
"""A graph is kept if its replay takes at most this share of a direct call. A smaller gain is not worth the memory."""


class Trial:
    """Collects the times of direct calls and replays, and decides which are faster once there are enough of both.

    Attributes:
        wins: whether replays are faster. None until there are enough times.
        direct: the time of a direct call in seconds. 0 until there are enough times.
        saving: the time that a replay saves of a direct call, in seconds.
    """

    def __init__(self, direct: Sequence[float] = ()) -> None:
        """Starts with already known times of direct calls, which must be fewer than `SAMPLES`."""
        self.wins: bool | None = None
        self.direct = 0.0
        self.saving = 0.0
        self._begun = [len(direct), -1]  # -1 leaves out the first replay, in which the device loads the graph
        self._is_loaded = False
        self._times: tuple[list[float], list[float]] = (list(direct), [])

    def begin(self) -> bool | None:
        """Returns the kind of the next timed call: True for a replay, False for a direct call, None for no more."""
        replayed = self._begun[True] <= self._begun[False]
        if self._begun[replayed] == SAMPLES:
            return None
        self._begun[replayed] += 1
        return replayed

    def add(self, replayed: bool, seconds: float) -> None:
        """Adds the time of a call that `begin` has requested."""
        if replayed and not self._is_loaded:
            self._is_loaded = True
            return
        self._times[replayed].append(seconds)
        if self.wins is None and all(len(times) >= SAMPLES for times in self._times):
            direct, replay = (sorted(times)[rank] for times, rank in zip(self._times, (FAST, SLOW), strict=True))
            self.direct, self.saving = direct, direct - replay
            self.wins = replay <= GAIN * direct


def median(values: list[float]) -> float:
    """Returns the median. For an even number of values, returns the lower of the two middle values."""
    return sorted(values)[(len(values) - 1) // 2]

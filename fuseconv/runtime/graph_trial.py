"""Whether a replay or a direct call is faster, by calls of both that are made and timed in turn. No torch."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLES = 5
"""The number of calls of each kind."""

FAST, SLOW = 1, 3
"""The ranks that are compared, in ascending order: a direct call that is rather fast with a replay that is rather slow.
So interruptions do not count, and noise alone does not make a graph win."""

GAIN = 0.98
"""A graph is kept if its replay takes at most this share of a direct call: less of a gain is not worth its memory."""


class Trial:
    """The times of direct calls and of replays, and which is faster once there are enough of both.

    Attributes:
        wins: whether the replay is faster. None while that is not known.
        direct: what a direct call takes, then, in seconds.
        saving: what a replay saves of it.
    """

    def __init__(self, direct: Sequence[float] = ()) -> None:
        """Starts with the times of direct calls that are known already, fewer than `SAMPLES`."""
        self.wins: bool | None = None
        self.direct = 0.0
        self.saving = 0.0
        self._begun = [len(direct), -1]  # the first replay, with which the device loads the graph, does not count
        self._is_loaded = False
        self._times: tuple[list[float], list[float]] = (list(direct), [])

    def begin(self) -> bool | None:
        """Returns whether the next call is a replay and is timed, or None if no more calls need to be."""
        replayed = self._begun[True] <= self._begun[False]
        if self._begun[replayed] == SAMPLES:
            return None
        self._begun[replayed] += 1
        return replayed

    def add(self, replayed: bool, seconds: float) -> None:
        """Adds the time of a call that was begun."""
        if replayed and not self._is_loaded:
            self._is_loaded = True
            return
        self._times[replayed].append(seconds)
        if self.wins is None and all(len(times) >= SAMPLES for times in self._times):
            direct, replay = (sorted(times)[rank] for times, rank in zip(self._times, (FAST, SLOW), strict=True))
            self.direct, self.saving = direct, direct - replay
            self.wins = replay <= GAIN * direct


def median(values: list[float]) -> float:
    """Returns the middle value, the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]

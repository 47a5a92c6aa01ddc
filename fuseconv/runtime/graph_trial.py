"""Decides from interleaved timings whether replays or direct calls are faster. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLES = 5
"""The number of timed calls of each kind, direct calls and replays."""

FAST, SLOW = 1, 3
"""The indices into the sorted times that are compared: a fairly fast direct call with a fairly slow replay. Thus a call
that was interrupted is ignored, and noise alone does not make a graph win."""

GAIN = 0.98
"""A graph is kept if a replay takes at most this share of the time of a direct call. A smaller gain is not worth the
memory."""


class Trial:
    """Collects the times of direct calls and replays, and decides which are faster after `SAMPLES` times of each.

    Attributes:
        wins: whether replays are faster. None until this is decided.
        direct: the time of a direct call in seconds. 0 until `wins` is decided.
        saving: the time of a direct call minus the time of a replay, in seconds. 0 until `wins` is decided.
    """

    def __init__(self, direct: Sequence[float] = ()) -> None:
        """Starts with the times of earlier direct calls in seconds, which must be fewer than `SAMPLES`."""
        self.wins: bool | None = None
        self.direct = 0.0
        self.saving = 0.0
        self._begun = [len(direct), -1]  # -1 leaves out the first replay, in which the device loads the graph
        self._is_loaded = False
        self._times: tuple[list[float], list[float]] = (list(direct), [])

    def begin(self) -> bool | None:
        """Returns how to make the next timed call: True for a replay, False for a direct call, None if none is left."""
        replayed = self._begun[True] <= self._begun[False]
        if self._begun[replayed] == SAMPLES:
            return None
        self._begun[replayed] += 1
        return replayed

    def add(self, replayed: bool, seconds: float) -> None:
        """Adds the time of a call that `begin` has requested. Ignores the first replay."""
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

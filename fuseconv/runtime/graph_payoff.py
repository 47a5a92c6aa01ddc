"""The policy of `cuda_graphs="auto"`: captures a shape when that pays, and drops it when another shape pays more.

An account bounds the loss. A direct call credits the account with a hundredth of the call's time, and a replay credits
the time that it saves. A capture debits its cost, except the first capture, which is free. Therefore calls take at most
a hundredth longer than without graphs, plus one capture, whatever the sizes are. docs/adr/0018-graph-policy.md gives
the reasons. All times are in seconds. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from fuseconv.runtime.graph_policy import K, Step
from fuseconv.runtime.graph_trial import Trial, median

SHARE = 0.01
"""The share of the time of direct calls that captures may cost, in addition to the time that graphs save."""

BANK = 16.0
"""The maximum balance of the account, in captures. Thus a change of the sizes cannot spend the gain of a whole day."""

PRIOR_COST = 4.0
"""The expected cost of the first capture, in direct calls. Later costs are estimated from the previous captures."""

LEAST_COST = 1e-3
"""The minimum expected cost of the first capture, in seconds."""

PRIOR_SAVING = 0.5
"""The expected saving of the first graph, as a share of a direct call. Later graphs are judged by the previous ones."""

MARGIN = 1.5
"""A graph is dropped only for a graph that saves this many times more, so that two shapes do not evict each other."""

HALF_LIFE = 2048
"""The number of calls after which earlier calls count half."""

KEYS = 512
"""The maximum number of shapes whose calls are counted."""

AGAIN = 4096
"""The number of calls of a shape after which replays and direct calls are compared again, as the load may change."""

FIRST_TIMED = 4
"""The number of timed direct calls of a shape without a graph. The first time, which may be slow, is ignored."""

WATCHING = 12e-6
"""The host time for counting and timing one call."""

LOOKING = 3e-6
"""The host time for finding that a call has no graph."""

WATCHED = 0.005
"""The share of a direct call that `WATCHING` may cost while there are no graphs. Other calls are not counted."""

LONGEST_REST = 512


@dataclass
class _Shape:
    """The statistics of one shape.

    Attributes:
        calls: the number of calls, in which earlier calls count less.
        asks: the number of calls from which on the shape's graph is worth more than the graphs dropped for it.
        begun: the number of direct calls that were requested to be timed before there was a graph.
        known: how many times of these calls are known.
        times: the times of these calls, without the first.
        size: the size of the graph in bytes. None if there is no graph.
        trials: the trials of the graph: first of calls without contention from other streams, then of contended calls.
        left: for each trial, the number of calls until it is repeated.
        banned: the number of calls until the shape may be captured again, after its graph was slower or did not fit.
    """

    calls: float = 0.0
    asks: float = 0.0
    begun: int = 0
    known: int = 0
    times: list[float] = field(default_factory=list)
    size: int | None = None
    trials: list[Trial] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    banned: int = 0


class WhenItPays(Generic[K]):
    """Captures a shape once the time that its calls have lost without a graph exceeds the cost of a capture."""

    def __init__(self, limit: int, memory: int, *, recurs: bool = False) -> None:
        """Starts without graphs.

        Args:
            limit: the maximum number of graphs.
            memory: the maximum number of bytes that the graphs hold.
            recurs: whether there is only one shape, which is then captured at its first call.
        """
        self.rest = 0
        self._limit = limit
        self._memory = memory
        self._recurs = recurs
        self._shapes: dict[K, _Shape] = {}
        self._graphs: dict[K, _Shape] = {}
        self._ticks = 0
        self._rested = 0
        self._gain = 0.0  # recent savings of graphs minus the recent cost of calls without one
        self._random = 1
        self._balance = 0.0
        self._most = 0.0  # the maximum of the balance, once a capture has been seen
        self._direct = 0.0  # the approximate time of a direct call; 0 if unknown
        self._cost: float | None = None  # the cost of a capture
        self._judged = 1
        self._shares = PRIOR_SAVING  # the sum of the shares of a direct call that the judged graphs saved
        self._too_large: int | None = None

    def step(self, key: K, contended: bool) -> Step:
        """Returns how a call is made."""
        shape = self._counted(key)
        if shape.size is not None:
            return self._graphed(shape, contended)
        self._pay(SHARE * (1 + self._rested) * self._expected(shape) - (LOOKING if self._graphs else 0.0))
        self._rested = 0
        if self._pays(shape):
            return Step.CAPTURE
        if self._graphs:
            self._gain -= LOOKING
            if self._gain < -HALF_LIFE * LOOKING:
                self._gain = 0.0
                for other in list(self._graphs):
                    self._drop(other)
                return Step.DROP_ALL
        else:
            self.rest = self._rested = self._drawn_rest()
        if shape.begun < FIRST_TIMED:
            shape.begun += 1
            return Step.TIMED_DIRECT
        return Step.DIRECT

    def timed(self, key: K, contended: bool, replayed: bool, seconds: float) -> bool:
        """Records the time of a timed call. Returns whether the caller must drop the key's graph."""
        if not replayed:
            # Follows shorter times at once but longer times slowly, because the first call of a shape takes long.
            known = self._direct
            self._direct = (known + seconds) / 2 if seconds < known else min(seconds, 1.1 * known or seconds)
        shape = self._shapes.get(key)
        if shape is None:
            return False
        if shape.size is None:
            if not replayed and shape.known:
                shape.times.append(seconds)
            shape.known += 1
            return False
        trial = shape.trials[contended]
        known_before = trial.wins is not None
        trial.add(replayed, seconds)
        if trial.wins is None or known_before or contended:
            return False
        self._judged += 1
        self._shares += max(0.0, trial.saving / trial.direct)
        if not trial.wins:
            shape.banned = AGAIN
            self._drop(key)
        return not trial.wins

    def room(self, key: K, size: int) -> tuple[K, ...] | None:
        """Drops graphs to make room for `size` bytes, and returns their keys. None if the new graph is not worth it."""
        shape = self._shapes[key]
        if size > self._memory or (self._too_large is not None and size >= self._too_large):
            shape.banned = AGAIN
            return None
        dropped: list[K] = []
        count, held, lost = len(self._graphs), sum(graph.size or 0 for graph in self._graphs.values()), 0.0
        for other in sorted(self._graphs, key=lambda other: self._value(self._graphs[other])):
            if count < self._limit and held + size <= self._memory:
                break
            lost += MARGIN * self._value(self._graphs[other])
            if self._value(shape) <= lost:
                shape.asks = lost / self._saving(shape)
                return None
            dropped.append(other)
            count, held = count - 1, held - (self._graphs[other].size or 0)
        for other in dropped:
            self._drop(other)
        return tuple(dropped)

    def captured(self, key: K, size: int, total: int, seconds: float) -> bool:
        """Records a capture. Returns False if the graphs now exceed the limit and the caller must drop all graphs."""
        if self._cost is None:  # the first capture is free, because no cost is known before it
            self._cost = seconds
        else:
            self._cost = (self._cost + seconds) / 2
            self._pay(-seconds)
        self._most = BANK * self._cost
        shape = self._shapes[key]
        shape.size, shape.trials, shape.left = size, [Trial(shape.times), Trial()], [AGAIN, AGAIN]
        self._graphs[key] = shape
        if total <= self._memory:
            return True
        shape.banned, self._too_large = AGAIN, size
        for other in list(self._graphs):
            self._drop(other)
        return False

    def _counted(self, key: K) -> _Shape:
        """Counts one call of a shape and returns the shape's statistics. Evicts rarely called shapes."""
        self._ticks += 1
        shape = self._shapes.get(key)
        while self._ticks >= HALF_LIFE or (shape is None and len(self._shapes) >= KEYS):
            self._ticks = 0
            self._forget()
            shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape()
        shape.calls += 1
        return shape

    def _forget(self) -> None:
        for shape in self._shapes.values():
            shape.calls /= 2
            shape.asks /= 2
        self._shapes = {key: x for key, x in self._shapes.items() if x.calls >= 1 or x.size is not None}

    def _graphed(self, shape: _Shape, contended: bool) -> Step:
        shape.left[contended] -= 1
        if shape.left[contended] == 0:
            shape.left[contended], shape.trials[contended] = AGAIN, Trial()
        trial = shape.trials[contended]
        if trial.wins is None:
            self._gain = min(0.0, self._gain + self._saving(shape))
            replayed = trial.begin()
            if replayed is None:
                return Step.REPLAY
            return Step.TIMED_REPLAY if replayed else Step.TIMED_DIRECT
        if not trial.wins:
            return Step.DIRECT
        # The hot path of a cache hit: most replays update nothing.
        if self._balance < self._most:
            self._pay(trial.saving)
        if self._gain < 0:
            self._gain = min(0.0, self._gain + trial.saving)
        return Step.REPLAY

    def _pays(self, shape: _Shape) -> bool:
        """Returns whether the calls so far would have saved the cost of a capture, had they been replays."""
        if shape.banned:
            shape.banned -= 1
            return False
        if self._recurs:
            return True
        cost = max(PRIOR_COST * self._expected(shape), LEAST_COST) if self._cost is None else self._cost
        if not self._direct or shape.calls < shape.asks or self._value(shape) < cost:
            return False
        return self._cost is None or self._balance >= cost

    def _value(self, shape: _Shape) -> float:
        """Returns the time that a graph would have saved over the recent calls of a shape."""
        return shape.calls * self._saving(shape)

    def _saving(self, shape: _Shape) -> float:
        if shape.trials and shape.trials[False].wins:
            return shape.trials[False].saving
        return self._expected(shape) * self._shares / self._judged

    def _expected(self, shape: _Shape) -> float:
        """Returns the expected time of a direct call of a shape."""
        return median(shape.times) if shape.times else self._direct

    def _pay(self, seconds: float) -> None:
        most = self._most or BANK * PRIOR_COST * self._direct
        self._balance = min(self._balance + seconds, max(most, self._balance))

    def _drop(self, key: K) -> None:
        shape = self._graphs.pop(key)
        shape.size = None
        shape.trials = []

    def _drawn_rest(self) -> int:
        """Draws a random number of calls to skip, so that every call of a fixed cycle is counted in time."""
        if not self._direct:
            return 0
        period = WATCHING / (WATCHED * self._direct)
        if period <= 1:
            return 0
        self._random = (self._random * 1103515245 + 12345) % 2**31
        return min(LONGEST_REST, int(2 * (period - 1) * self._random / 2**31))

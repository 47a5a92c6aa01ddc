"""The policy of `cuda_graphs="auto"`: captures graphs that are expected to save time, and drops the least useful ones.

An account, a balance in seconds, bounds the time that captures may cost. A direct call credits the account with a
hundredth of the call's time, and a replay credits it with the time that the replay saves. A capture debits its own
duration, except the first capture, which is free. Therefore calls take at most a hundredth longer than without graphs,
plus one capture, for any sequence of input shapes. docs/adr/0018-graph-policy.md gives the reasons. All times are in
seconds. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from fuseconv.runtime.graph_policy import K, Step
from fuseconv.runtime.graph_trial import Trial, median

SHARE = 0.01
"""The share of the time of direct calls that captures may take, in addition to the time that replays save."""

BANK = 16.0
"""The maximum balance of the account, as a multiple of the cost of a capture. It limits how many captures a change of
the input shapes can cause after a long run."""

PRIOR_COST = 4.0
"""The expected cost of the first capture, as a multiple of the time of a direct call. The cost of later captures is
estimated from previous captures."""

LEAST_COST = 1e-3
"""The minimum expected cost of the first capture, in seconds."""

PRIOR_SAVING = 0.5
"""The expected saving of the first graph, as a share of the time of a direct call. For later graphs, the expected share
is the mean of this value and the shares that earlier graphs saved."""

MARGIN = 1.5
"""A graph replaces other graphs only if it saves more than this multiple of the others' savings, so that two shapes
do not evict each other alternately."""

HALF_LIFE = 2048
"""The number of calls after which the counts of earlier calls are halved."""

KEYS = 512
"""The maximum number of shapes whose calls are counted."""

AGAIN = 4096
"""The number of calls of a shape after which its replays and direct calls are timed again, because the load on the
machine may have changed. Also the number of calls for which a shape is not captured after its graph was rejected."""

FIRST_TIMED = 4
"""How many direct calls of a shape are timed before the shape has a graph. The first time is ignored, because the first
call may be slow."""

WATCHING = 12e-6
"""The assumed host time for counting and timing one call, in seconds."""

LOOKING = 3e-6
"""The assumed host time for finding that a call has no graph, in seconds."""

WATCHED = 0.005
"""The share of the time of direct calls that counting and timing may take while there are no graphs. To stay within
this share, some calls are made without being counted."""

LONGEST_REST = 512
"""The maximum number of consecutive calls that are not counted."""


@dataclass
class _Shape:
    """The statistics of the calls with one set of input shapes, called a shape below.

    Attributes:
        calls: the number of counted calls of the shape, halved every `HALF_LIFE` counted calls of the model.
        asks: the value of `calls` above which a graph is worth more than the graphs that it would replace. 0 at first.
        begun: the number of direct calls without a graph that the caller was asked to time.
        known: the number of these calls whose time the caller has reported.
        times: the times of these calls in seconds, without the first.
        size: the size of the graph in bytes. None if there is no graph.
        trials: two trials of the graph, for calls without and with contention from other streams. Empty without a
            graph.
        left: for each trial, the number of calls until the trial is repeated.
        banned: the number of calls until the shape may be captured again, after its graph was slower or did not fit.
            0 if it may be captured now.
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
    """A policy that captures a CUDA graph for an input shape as soon as it would have paid.

    It would have paid if the calls with this shape so far would have saved more time with a graph than a capture takes.
    """

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
        self._gain = 0.0  # recent savings of replays minus the recent cost of looking for graphs; at most 0
        self._random = 1
        self._balance = 0.0
        self._most = 0.0  # the maximum balance; 0 before the first capture
        self._direct = 0.0  # the approximate time of a direct call; 0 if unknown
        self._cost: float | None = None  # the cost of a capture
        self._judged = 1
        self._shares = PRIOR_SAVING  # the sum of the shares that graphs saved, including the prior
        self._too_large: int | None = None

    def step(self, key: K, contended: bool) -> Step:
        """Counts one call with these input shapes, and returns how the caller must make it."""
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
        """Records the time of a timed call. Returns True if the key's graph is slower and the caller must drop it."""
        if not replayed:
            # Adapts fast to shorter times but slowly to longer times, because the first call of a shape takes long.
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
        """Makes room for a new graph of `size` bytes, and returns the keys of the graphs that the caller must drop.

        Returns None if the caller must not capture, because the new graph is too large, or saves too little compared
        with the graphs that it would replace.
        """
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
        """Records a capture. Returns False if the graphs exceed the memory limit, so that the caller must drop all."""
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
        """Halves the counts of all shapes. Evicts the shapes without a graph whose count falls below 1."""
        for shape in self._shapes.values():
            shape.calls /= 2
            shape.asks /= 2
        self._shapes = {key: x for key, x in self._shapes.items() if x.calls >= 1 or x.size is not None}

    def _graphed(self, shape: _Shape, contended: bool) -> Step:
        """Returns how to make a call that has a graph: as the graph's trial requests, and afterwards the faster way."""
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
        """Returns whether to capture a shape: whether replays would have saved the cost, and the account covers it."""
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
        """Returns the time in seconds that a graph would have saved over the recent calls of a shape."""
        return shape.calls * self._saving(shape)

    def _saving(self, shape: _Shape) -> float:
        """Returns the time in seconds that a replay saves: measured for this shape if known, otherwise expected."""
        if shape.trials and shape.trials[False].wins:
            return shape.trials[False].saving
        return self._expected(shape) * self._shares / self._judged

    def _expected(self, shape: _Shape) -> float:
        """Returns the expected time of a direct call of a shape in seconds, 0 if no direct call was timed yet."""
        return median(shape.times) if shape.times else self._direct

    def _pay(self, seconds: float) -> None:
        """Credits the account, up to its maximum balance, or debits it if `seconds` is negative."""
        most = self._most or BANK * PRIOR_COST * self._direct
        self._balance = min(self._balance + seconds, max(most, self._balance))

    def _drop(self, key: K) -> None:
        """Records that the graph of a shape is dropped, and discards its trials."""
        shape = self._graphs.pop(key)
        shape.size = None
        shape.trials = []

    def _drawn_rest(self) -> int:
        """Returns a random number of calls to make without counting, 0 if all calls are counted.

        The number is random so that, if shapes recur in a fixed cycle, the calls of every shape are counted eventually.
        """
        if not self._direct:
            return 0
        period = WATCHING / (WATCHED * self._direct)
        if period <= 1:
            return 0
        self._random = (self._random * 1103515245 + 12345) % 2**31
        return min(LONGEST_REST, int(2 * (period - 1) * self._random / 2**31))

"""The policy of `cuda_graphs="auto"`: a shape is captured when that pays, and dropped when another one pays more.

An account bounds the loss. A call that is made directly pays in a hundredth of its time, and a replay what it saves;
a capture takes out what it costs, but for the first one. So the calls take at most a hundredth longer than without
graphs, plus one capture, whatever the sizes are. docs/adr/0018-graph-policy.md has the reasons. No torch; times are in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from fuseconv.runtime.graph_policy import K, Step
from fuseconv.runtime.graph_trial import Trial, median

SHARE = 0.01
"""The share of the time of direct calls that captures may cost, beside what graphs save."""

BANK = 16.0
"""The number of captures for which the account can save up: a change of the sizes cannot spend the gain of a day."""

PRIOR_COST = 4.0
"""The cost of the first capture, in direct calls. Later ones are estimated by those before."""

LEAST_COST = 1e-3
"""The seconds that the first capture is expected to cost at least."""

PRIOR_SAVING = 0.5
"""The share of a direct call that the first graph is expected to save. Later ones are estimated by those before."""

MARGIN = 1.5
"""A graph makes room only for one that saves so many times more, so that two shapes do not take turns."""

HALF_LIFE = 2048
"""The number of calls after which earlier calls count half."""

KEYS = 512
"""The maximum number of shapes whose calls are counted."""

AGAIN = 4096
"""The number of calls of a shape after which replays and direct calls are compared again: the load may be another."""

FIRST_TIMED = 4
"""The number of direct calls that are timed of a shape without a graph. The first, which may be slow, is left out."""

WATCHING = 12e-6
"""What it costs the host to count and to time one call."""

LOOKING = 3e-6
"""What it costs the host to find that a call has no graph."""

WATCHED = 0.005
"""The share of a direct call that this may cost while there are no graphs: other calls are not watched."""

LONGEST_REST = 512


@dataclass
class _Shape:
    """What is known about one shape.

    Attributes:
        calls: the number of calls, of which earlier ones count less.
        asks: the number of calls from which on its graph is worth more than those that would make room.
        begun: the number of direct calls that were to be timed before there was a graph.
        known: the number of those whose times are known.
        times: what they took, without the first.
        size: the bytes of the graph. None if there is no graph.
        trials: what was measured with the graph: calls that did not compete with other streams, and calls that did.
        left: the number of calls until each trial is repeated.
        banned: the number of calls until it may be captured again: its graph was slower, or did not fit.
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
    """Captures a shape when the time that its calls have lost without a graph exceeds what a capture costs."""

    def __init__(self, limit: int, memory: int, *, recurs: bool = False) -> None:
        """Starts without graphs.

        Args:
            limit: the maximum number of graphs.
            memory: the maximum number of bytes that they hold.
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
        self._gain = 0.0  # what graphs save of late, less what it costs to find that a call has none
        self._random = 1
        self._balance = 0.0
        self._most = 0.0  # of the balance, once a capture has been seen
        self._direct = 0.0  # about what a direct call takes; 0 if that is not known
        self._cost: float | None = None  # of a capture
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
        """Reports what a timed call took. Returns whether its graph is to be dropped."""
        if not replayed:
            # Follows short times at once, and long ones slowly: the first call of a shape takes long.
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
        """Returns the keys whose graphs make room for one of `size` bytes, or None if it is not worth it."""
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
        """Reports a capture. Returns False if the graphs exceed the limit now, and all are to be dropped."""
        if self._cost is None:  # the first capture is free: what the next ones cost is not known before
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
        """Returns a shape after it has counted a call, and forgets the shapes that are rarely called."""
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
        # Of most replays nothing needs to be written down: this is the path of a hit.
        if self._balance < self._most:
            self._pay(trial.saving)
        if self._gain < 0:
            self._gain = min(0.0, self._gain + trial.saving)
        return Step.REPLAY

    def _pays(self, shape: _Shape) -> bool:
        """Whether the calls so far, had they been replays, would have saved what a capture costs."""
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
        """The saving of a graph in the calls of late."""
        return shape.calls * self._saving(shape)

    def _saving(self, shape: _Shape) -> float:
        if shape.trials and shape.trials[False].wins:
            return shape.trials[False].saving
        return self._expected(shape) * self._shares / self._judged

    def _expected(self, shape: _Shape) -> float:
        """What a direct call of a shape takes."""
        return median(shape.times) if shape.times else self._direct

    def _pay(self, seconds: float) -> None:
        most = self._most or BANK * PRIOR_COST * self._direct
        self._balance = min(self._balance + seconds, max(most, self._balance))

    def _drop(self, key: K) -> None:
        shape = self._graphs.pop(key)
        shape.size = None
        shape.trials = []

    def _drawn_rest(self) -> int:
        """A random number of calls, so that calls in a fixed order are all watched in time."""
        if not self._direct:
            return 0
        period = WATCHING / (WATCHED * self._direct)
        if period <= 1:
            return 0
        self._random = (self._random * 1103515245 + 12345) % 2**31
        return min(LONGEST_REST, int(2 * (period - 1) * self._random / 2**31))

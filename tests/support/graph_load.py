"""Sequences of calls, and what they take under a policy of CUDA graphs: a model of the host, not of a GPU."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuseconv.runtime.graph_policy import Policy, Step


@dataclass(frozen=True)
class Costs:
    """What a call takes, in seconds.

    Attributes:
        direct: a direct call.
        replay: a replay.
        capture: what a capture takes beside the direct call with which it begins.
        noise: the relative noise of what is measured.
    """

    direct: float
    replay: float
    capture: float
    noise: float = 0.05


LOOKING, TIMING, RESTING = 3e-6, 9e-6, 0.2e-6
"""What a direct call takes longer if the policy is asked, if it is timed, and if the policy rests."""


@dataclass
class Outcome:
    """What the calls took.

    Attributes:
        seconds: all calls with the captures.
        direct: all calls, had none been captured.
        captures: the number of captures.
        graphs: the graphs in the end.
        watched: the number of calls that the policy was shown.
    """

    seconds: float = 0.0
    direct: float = 0.0
    captures: int = 0
    graphs: frozenset[int] = frozenset()
    watched: int = 0


def simulate(policy: Policy[int], calls: Sequence[int], costs: Callable[[int], Costs], size: int = 1) -> Outcome:
    """Makes the calls of these keys under a policy. A time is reported three calls later, as one of a GPU would be."""
    noise, done, graphs = random.Random(0), Outcome(), set[int]()
    pending: deque[tuple[int, int, bool, float]] = deque()
    for number, key in enumerate(calls):
        cost = costs(key)
        done.direct += cost.direct
        while pending and pending[0][0] <= number:
            _, timed, replayed, seconds = pending.popleft()
            if policy.timed(timed, False, replayed, seconds):
                graphs.remove(timed)
        if policy.rest:
            policy.rest -= 1
            done.seconds += cost.direct + RESTING
            continue
        done.watched += 1
        step = policy.step(key, False)
        replayed = step in (Step.REPLAY, Step.TIMED_REPLAY)
        assert not replayed or key in graphs
        seconds = cost.replay if replayed else cost.direct
        done.seconds += seconds if replayed else seconds + LOOKING
        if step in (Step.TIMED_DIRECT, Step.TIMED_REPLAY):
            done.seconds += TIMING
            pending.append((number + 3, key, replayed, seconds * (1 + error(noise, cost))))
        if step is Step.DROP_ALL:
            graphs = set()
        if step is Step.CAPTURE and (dropped := policy.room(key, size)) is not None:
            done.seconds += cost.capture
            done.captures += 1
            graphs = (graphs - set(dropped)) | {key}
            if not policy.captured(key, size, size * len(graphs), cost.capture):
                graphs = set()
    done.graphs = frozenset(graphs)
    return done


def error(noise: random.Random, cost: Costs) -> float:
    """Returns a relative error: no time is too short, and sometimes one is much too long, as after an interruption."""
    return cost.noise * noise.expovariate(1.0) * (20 if noise.random() < 0.02 else 1)


def one(count: int) -> list[int]:
    return [0] * count


def uniform(sizes: int, count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(sizes), k=count)


def zipf(sizes: int, count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(sizes), [1 / (rank + 1) for rank in range(sizes)], k=count)


def cycle(sizes: int, count: int) -> list[int]:
    return [number % sizes for number in range(count)]


def new(count: int) -> list[int]:
    return list(range(count))

"""Which of two calls is faster, and when their times do not say so."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence

import pytest

from fuseconv.measure import turns
from fuseconv.measure.pairs import FEWEST, interval, ratio

STEADY = [100.0] * 31
DRIFTING = [100.0 + at for at in range(31)]
NOISY = [100.0 + 20 * random.Random(1).random() for _ in range(31)]


def scaled(times: Sequence[float], by: float) -> list[float]:
    return [time * by for time in times]


JUDGED = {
    "twice as fast": (STEADY, scaled(STEADY, 0.5), "faster"),
    "a tenth slower": (STEADY, scaled(STEADY, 1.1), "slower"),
    "the same": (STEADY, STEADY, "even"),
    "less than two copies of one artifact differ": (STEADY, scaled(STEADY, 0.997), "even"),
    "both drift by a third, one is a twentieth faster": (DRIFTING, scaled(DRIFTING, 0.95), "faster"),
    "noise of a fifth around the same": (NOISY, list(reversed(NOISY)), "even"),
    "a few disturbed pairs": (STEADY, [*scaled(STEADY[:25], 0.9), *scaled(STEADY[25:], 50)], "faster"),
    "faster in half of the pairs": (STEADY, [50.0, 200.0] * 15 + [50.0], "even"),
    "the fewest pairs, all faster": (STEADY[:FEWEST], scaled(STEADY[:FEWEST], 0.9), "faster"),
    "the fewest pairs, one slower": (STEADY[:FEWEST], [*scaled(STEADY[1:FEWEST], 0.9), 101.0], "even"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_difference_counts_if_it_exceeds_the_noise(name: str) -> None:
    base, challenger, expected = JUDGED[name]
    found = ratio(base, challenger)
    assert ("faster" if found.faster else "slower" if found.slower else "even") == expected
    assert found.low < found.median < found.high
    swapped = ratio(challenger, base)
    assert (found.faster, found.slower) == (swapped.slower, swapped.faster)


def test_equal_calls_are_rarely_told_apart() -> None:
    generator = random.Random(0)
    calls = [[generator.gauss(100, 5) for _ in range(31)] for _ in range(1000)]
    told = [ratio(one, other) for one, other in itertools.pairwise(calls)]
    assert sum(found.faster or found.slower for found in told) < 20


@pytest.mark.parametrize(("onnx", "wins"), [(0.9, True), (1.0, True), (1.1, False)])
def test_a_challenger_that_loses_in_one_target_does_not_win(onnx: float, wins: bool) -> None:
    plugin, other = ratio(STEADY, scaled(STEADY, 0.5)), ratio(STEADY, scaled(STEADY, onnx))
    times = {"onnx-plugin": turns.Times(100, 50, plugin), "onnx": turns.Times(100, 100 * onnx, other)}
    assert turns.Duel(ratio(STEADY, scaled(STEADY, 0.7)), times).wins == wins


def test_too_few_pairs_are_an_error() -> None:
    with pytest.raises(ValueError, match=f"fewer than {FEWEST}"):
        ratio(STEADY[:3], STEADY[:3])


def test_calls_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call advances the clock by its time. The order alternates, and the time of each pair is told by the clock."""
    now, order = [0.0], list[str]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call(name: str, seconds: float) -> Callable[[], object]:
        def run() -> None:
            order.append(name)
            now[0] += seconds

        return run

    base = [call("a", 0.010), call("a large", 0.100)]
    challenger = [call("b", 0.005), call("b large", 0.200)]
    found = turns.timed(base, challenger, ["export"], 5.0)
    times = found.times["export"]
    assert [times.base, times.challenger] == pytest.approx([10_000, 5_000])
    assert found.ratio.median == pytest.approx(1)  # half the time in one case, twice the time in the other
    assert times.ratio == found.ratio
    timed = order[4 * turns.WARM_UP :]
    assert timed[:8] == ["a", "b", "a large", "b large", "b", "a", "b large", "a large"]
    assert len(timed) == 4 * turns.USUAL  # they take 10 s


@pytest.mark.parametrize(
    ("pairs", "spent", "enough"),
    [(101, 0.5, True), (100, 0.9, False), (31, 1.0, True), (30, 3.9, False), (12, 4.0, True), (11, 9.0, False)],
)
def test_pairs_are_enough(pairs: int, spent: float, enough: bool) -> None:
    assert turns._is_enough(pairs, spent) == enough


INTERVALS = {
    "too few for 95 %": (range(7), 1.96, None),
    "the fewest for 95 %": (range(8), 1.96, (0, 7)),
    "many for 95 %": (range(101), 1.96, (39, 61)),
    "many for 99 %": (range(101), 2.576, (36, 64)),
    "in any order": ((5, 1, 9, 3, 7, 2, 8, 4), 1.96, (1, 9)),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_the_interval_of_a_median_ends_at_measured_values(name: str) -> None:
    values, deviations, expected = INTERVALS[name]
    assert interval(list(values), deviations) == expected


def test_the_interval_contains_the_median_as_often_as_it_says() -> None:
    generator = random.Random(0)
    found = [interval([generator.expovariate(1) for _ in range(101)], 1.96) for _ in range(1000)]
    assert 0.93 < sum(one is not None and one[0] < math.log(2) < one[1] for one in found) / 1000 < 0.99

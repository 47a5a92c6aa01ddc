"""The policies of CUDA graphs: what calls take under them, beside no graphs at all and the best choice in hindsight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graph_load import Costs, cycle, new, one, simulate, uniform, zipf

from fuseconv.runtime.graph_payoff import KEYS, WhenItPays
from fuseconv.runtime.graph_policy import AtFirstSight, Step

LIMIT = 64
WIN = Costs(1.1e-3, 0.45e-3, 4e-3)  # BERT-base, one row
TIE = Costs(1.65e-3, 1.64e-3, 6e-3)  # 32 rows
LOSS = Costs(25e-6, 43e-6, 400e-6)  # three small layers
CHANGE = [key + 100 for key in zipf(100, 8000, 1)]


def mixed(key: int) -> Costs:
    """Small keys win, others lose."""
    return WIN if key % 3 else TIE


def policy(limit: int = LIMIT, memory: int = 10**9) -> WhenItPays[int]:
    return WhenItPays(limit, memory)


def best(calls: list[int], costs: Callable[[int], Costs]) -> float:
    """What the calls take if the right shapes are captured at their first calls, and never dropped."""
    gains = []
    for key, count in Counter(calls).items():
        cost = costs(key)
        gains.append(max(0.0, (count - 1) * (cost.direct - cost.replay) - cost.capture))
    return sum(costs(key).direct for key in calls) - sum(sorted(gains)[-LIMIT:])


@pytest.mark.parametrize(
    ("calls", "to_direct", "to_best"),
    [
        pytest.param(one(300), 0.5, 1.1, id="one size"),
        pytest.param(one(20000), 0.42, 1.01, id="one size, long"),
        pytest.param(zipf(100, 300), 0.99, 1.25, id="Zipf"),
        pytest.param(zipf(100, 20000), 0.55, 1.1, id="Zipf, long"),
        pytest.param(uniform(100, 300), 1.02, 1.05, id="100 sizes"),
        pytest.param(uniform(100, 20000), 0.8, 1.25, id="100 sizes, long"),
        pytest.param(uniform(1000, 20000), 1.01, 1.1, id="1000 sizes"),
        pytest.param(new(3000), 1.01, 1.01, id="every size is new"),
        pytest.param(cycle(2, 300), 0.6, 1.25, id="two sizes in turn"),
        pytest.param(cycle(LIMIT + 1, 20000), 0.55, 1.2, id="one size too many"),
        pytest.param(cycle(4 * LIMIT, 20000), 1.01, 1.25, id="many sizes too many"),
        pytest.param(zipf(100, 8000) + CHANGE, 0.6, 1.2, id="the sizes change"),
        pytest.param(one(5000) + uniform(1000, 5000), 0.8, 1.1, id="the size becomes random"),
    ],
)
def test_graphs_that_win_pay(calls: list[int], to_direct: float, to_best: float) -> None:
    done = simulate(policy(), calls, lambda _: WIN)
    assert done.seconds <= to_direct * done.direct
    assert done.seconds <= to_best * best(calls, lambda _: WIN)
    assert len(done.graphs) <= LIMIT


@pytest.mark.parametrize("costs", [TIE, LOSS], ids=["tie", "loss"])
@pytest.mark.parametrize("calls", [one, lambda n: zipf(100, n), lambda n: uniform(100, n), lambda n: cycle(65, n), new])
@pytest.mark.parametrize("count", [300, 3000, 30000])
def test_graphs_that_do_not_win_cost_next_to_nothing(
    calls: Callable[[int], list[int]], count: int, costs: Costs
) -> None:
    done = simulate(policy(), calls(count), lambda _: costs)
    assert done.seconds <= max(1.02 * done.direct, done.direct + costs.capture)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=400), st.integers(1, 4), st.integers(0, 3))
def test_the_loss_is_bounded_for_any_calls(calls: list[int], limit: int, seed: int) -> None:
    costs = {key: [WIN, TIE, LOSS][hash((key, seed)) % 3] for key in range(31)}
    done = simulate(policy(limit), calls * 3, costs.__getitem__)
    slack = max(cost.capture for cost in costs.values()) + 30 * (LOSS.replay - LOSS.direct)
    assert done.seconds <= 1.02 * done.direct + slack
    assert len(done.graphs) <= limit


def test_only_graphs_that_win_are_kept() -> None:
    calls = uniform(12, 6000)
    assert simulate(policy(), calls, mixed).graphs == {key for key in range(12) if key % 3}


@pytest.mark.parametrize(("costs", "most"), [(WIN, 0.75), (LOSS, 0.02)], ids=["large", "small"])
def test_calls_that_get_no_graph_are_rarely_watched(costs: Costs, most: float) -> None:
    """The policy's own microseconds are a small share of a call."""
    assert simulate(policy(), new(20000), lambda _: costs).watched <= most * 20000


def test_the_only_shape_is_captured_at_once() -> None:
    only: WhenItPays[int] = WhenItPays(LIMIT, 1000, recurs=True)
    assert only.step(0, False) is Step.CAPTURE
    done = simulate(WhenItPays(LIMIT, 1000, recurs=True), one(100), lambda _: LOSS)
    assert (done.captures, done.graphs) == (1, frozenset())


@pytest.mark.parametrize(("memory", "graphs"), [(0, 0), (99, 0), (100, 1), (399, 3), (10**9, 5)])
def test_memory_is_bounded(memory: int, graphs: int) -> None:
    done = simulate(policy(memory=memory), uniform(5, 5000), lambda _: WIN, size=100)
    assert len(done.graphs) == graphs
    assert done.captures <= 8, "graphs take turns"


def test_a_graph_whose_shared_memory_is_too_large_is_not_tried_again() -> None:
    tried = policy(memory=150)
    calls = [
        step for _ in range(100) if (step := tried.step(7, False)) and (step is not Step.CAPTURE or not fails(tried))
    ]
    assert Step.CAPTURE not in calls[20:]


def fails(tried: WhenItPays[int]) -> bool:
    assert tried.room(7, 100) == ()
    return not tried.captured(7, 100, 200, 1e-3)


def test_a_graph_may_win_alone_and_lose_beside_other_streams() -> None:
    tried = policy()
    contended = 0
    taken: list[Step] = []
    for number in range(200):
        contended = number % 2
        step = tried.step(0, bool(contended))
        if step is Step.CAPTURE:
            assert tried.room(0, 1) == ()
            assert tried.captured(0, 1, 1, 1e-3)
        elif step in (Step.TIMED_DIRECT, Step.TIMED_REPLAY):
            replayed = step is Step.TIMED_REPLAY
            assert not tried.timed(
                0, bool(contended), replayed, 3e-3 if replayed and contended else 2e-3 - replayed * 1e-3
            )
        taken.append(step)
    assert taken[-2:] == [Step.REPLAY, Step.DIRECT]


def test_no_more_shapes_are_counted_than_a_table_holds() -> None:
    tried = policy()
    for key in range(5 * KEYS):
        tried.step(key, False)
    assert len(tried._shapes) <= KEYS


@given(st.integers(1, 4), st.lists(st.integers(0, 6)))
def test_at_first_sight_the_last_keys_used_are_kept(limit: int, uses: list[int]) -> None:
    recent = AtFirstSight(limit, 10**9)
    for index, key in enumerate(uses):
        kept = list(dict.fromkeys(reversed(uses[:index])))[:limit]
        step = recent.step(key, False)
        assert step is (Step.REPLAY if key in kept else Step.CAPTURE)
        if step is Step.CAPTURE:
            assert recent.room(key, 1) == ((kept[-1],) if len(kept) == limit else ())
            assert recent.captured(key, 1, 1, 1.0)


def test_at_first_sight_the_oldest_make_room() -> None:
    recent = AtFirstSight(9, 100)
    for key, size, dropped in [(0, 40, ()), (1, 40, ()), (2, 30, (0,)), (3, 100, (1, 2)), (4, 10, (3,))]:
        assert recent.step(key, False) is Step.CAPTURE
        assert recent.room(key, size) == dropped
        assert recent.captured(key, size, size, 1.0)
    assert not recent.captured(5, 50, 101, 1.0)
    assert recent.step(4, False) is Step.CAPTURE
    assert recent.rest == 0

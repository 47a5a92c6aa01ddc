"""Batching: which requests share a call, in which order, and what becomes of those that fail or are late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fuseconv.serving.batching import Batcher, Limits
from fuseconv.serving.refusals import BusyError, DrainingError, LateError

Made = tuple[Batcher[int, int], list[list[int]]]


def doubling(limits: Limits, seconds: float = 0.0) -> Made:
    """A batcher that doubles numbers and fails for a batch with a negative one, and the batches that it computed."""
    batches: list[list[int]] = []

    async def call(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        await asyncio.sleep(seconds)
        if any(item < 0 for item in items):
            raise ValueError(f"negative: {items}")
        return [2 * item for item in items]

    return Batcher(call, limits), batches


async def all_of(batcher: Batcher[int, int], *requests: tuple[int, str, int]) -> list[int | BaseException]:
    return await asyncio.gather(*(batcher.submit(*request) for request in requests), return_exceptions=True)


GROUPS: dict[str, tuple[Limits, list[tuple[int, str, int]], list[list[int]]]] = {
    "equal keys share a batch": (Limits(8, delay=0.5), [(1, "a", 1), (2, "a", 3), (3, "a", 1)], [[1, 2, 3]]),
    "other keys do not": (Limits(8, delay=0.5), [(1, "a", 1), (2, "b", 1), (3, "a", 1)], [[1, 3], [2]]),
    "up to the rows": (Limits(4), [(1, "a", 2), (2, "a", 2), (3, "a", 1)], [[1, 2], [3]]),
    "in the order of arrival": (Limits(4), [(1, "a", 3), (2, "a", 2), (3, "a", 1)], [[1], [2, 3]]),
    "one with more rows is alone": (Limits(4), [(1, "a", 9), (2, "a", 1)], [[1], [2]]),
    "without delay nobody waits": (Limits(8, delay=0), [(1, "a", 1), (2, "a", 1), (3, "a", 1)], [[1], [2, 3]]),
    "a full batch does not wait": (Limits(2, delay=60), [(1, "a", 1), (2, "a", 1)], [[1, 2]]),
}


@pytest.mark.parametrize("case", GROUPS)
def test_which_requests_share_a_batch(case: str) -> None:
    limits, requests, expected = GROUPS[case]
    batcher, batches = doubling(limits)
    assert asyncio.run(all_of(batcher, *requests)) == [2 * item for item, *_ in requests]
    assert batches == expected


def test_batches_grow_while_the_worker_is_busy() -> None:
    batcher, batches = doubling(Limits(8, delay=0), seconds=0.01)
    asyncio.run(all_of(batcher, *((item, "a", 1) for item in range(9))))
    assert batches == [[0], list(range(1, 9))]


@pytest.mark.parametrize("wrong", [0, 3, 7])
def test_who_fails_does_not_affect_the_others(wrong: int) -> None:
    items = [-1 if at == wrong else at for at in range(8)]
    batcher, batches = doubling(Limits(8, delay=60))
    results = asyncio.run(all_of(batcher, *((item, "a", 1) for item in items)))
    assert [str(result) for result in results] == ["negative: [-1]" if at == wrong else str(2 * at) for at in range(8)]
    assert len(batches) == 1 + 2 * 3  # halves of 8, of 4, of 2


def test_a_full_queue_refuses() -> None:
    batcher, _ = doubling(Limits(1, queue=2), seconds=0.01)
    results = asyncio.run(all_of(batcher, *((item, "a", 1) for item in range(4))))
    assert [type(result) for result in results] == [int, int, int, BusyError]  # one runs, two wait
    assert batcher.waiting == 0


def test_late_requests_are_given_up_and_take_no_room() -> None:
    async def run() -> tuple[list[int | BaseException], int, list[int | BaseException]]:
        batcher, batches = doubling(Limits(1, timeout=0.02), seconds=0.05)
        late = await all_of(batcher, (1, "a", 1), (2, "a", 1))
        waiting = batcher.waiting
        await batcher.drain()
        assert batches == [[1]]  # the second was never begun
        return late, waiting, await all_of(batcher, (3, "a", 1))

    late, waiting, refused = asyncio.run(run())
    assert [type(result) for result in late] == [LateError, LateError]
    assert waiting == 0
    assert isinstance(refused[0], DrainingError)


def test_who_goes_away_takes_no_room() -> None:
    async def run() -> int:
        batcher, _ = doubling(Limits(1), seconds=0.01)
        tasks = [asyncio.create_task(batcher.submit(item, "a", 1)) for item in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [tasks[0].result(), tasks[2].result()] == [0, 4]
        return batcher.waiting

    assert asyncio.run(run()) == 0


def test_draining_computes_what_waits_at_once() -> None:
    async def run() -> list[int]:
        batcher, _ = doubling(Limits(8, delay=60))
        tasks = [asyncio.create_task(batcher.submit(item, "a", 1)) for item in range(3)]
        await asyncio.sleep(0)
        await batcher.drain()
        return [await task for task in tasks]

    assert asyncio.run(run()) == [0, 2, 4]


def test_several_workers() -> None:
    running: list[int] = []

    async def call(items: Sequence[int]) -> Sequence[int]:
        running.append(1 + (running[-1] if running else 0))
        await asyncio.sleep(0.01)
        running.append(running[-1] - 1)
        return items

    batcher: Batcher[int, int] = Batcher(call, Limits(1, delay=0, workers=2))
    asyncio.run(all_of(batcher, *((item, "a", 1) for item in range(6))))
    assert max(running) == 2

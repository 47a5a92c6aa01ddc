"""Concurrent calls of a package, with loaders that wait until the test lets them return."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
import torch

from fuseconv.targets.aoti_loaders import Loaders

SECONDS = 30


class Loader:
    """A loader that reports each call, and returns once it may."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.may_return = threading.Semaphore(0)

    def boxed_run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.entered.release()
        assert self.may_return.acquire(timeout=SECONDS)
        return [2 * x for x in inputs]


class Maker:
    """Makes loaders, and fails once it has made `most`."""

    def __init__(self, most: int = 10) -> None:
        self.most = most
        self.made: list[Loader] = []

    def __call__(self) -> Loader:
        if len(self.made) == self.most:
            raise RuntimeError("no memory for a further loader")
        self.made.append(Loader())
        return self.made[-1]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    for _ in range(SECONDS * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise TimeoutError


def call(pool: ThreadPoolExecutor, loaders: Loaders, value: float, *, capturing: bool = False) -> Future[float]:
    return pool.submit(lambda: float(loaders.run([torch.tensor(value)], capturing=capturing)[0]))


def test_calls_of_one_thread_need_one_loader() -> None:
    make = Maker()
    loaders = Loaders(make, 4)
    make.made[0].may_return.release(3)
    for value in range(3):
        assert loaders.run([torch.tensor(value)], capturing=False) == [2 * value]
    assert len(make.made) == 1


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_calls_that_wait_get_loaders_up_to_the_limit(limit: int, pool: ThreadPoolExecutor) -> None:
    make = Maker()
    loaders = Loaders(make, limit)
    futures = []
    for at in range(limit):  # each enters a loader of its own while the others wait in theirs
        futures.append(call(pool, loaders, at))
        until(partial(lambda at: len(make.made) > at, at))
        assert make.made[at].entered.acquire(timeout=SECONDS)
    further = [call(pool, loaders, at) for at in range(limit, limit + 3)]
    threading.Event().wait(0.1)
    assert len(make.made) == limit
    assert not any(one.done() for one in futures + further)
    for one in make.made:
        one.may_return.release(4)
    assert [one.result(SECONDS) for one in futures + further] == [2 * at for at in range(limit + 3)]
    assert len(make.made) == limit


def test_a_capture_takes_the_first_loader(pool: ThreadPoolExecutor) -> None:
    make = Maker()
    loaders = Loaders(make, 2)
    (first,) = make.made
    running = call(pool, loaders, 1.0)
    assert first.entered.acquire(timeout=SECONDS)
    captured = call(pool, loaders, 2.0, capturing=True)
    threading.Event().wait(0.1)
    assert len(make.made) == 1  # a capture adds no loader
    other = call(pool, loaders, 3.0)
    until(lambda: len(make.made) == 2)
    make.made[1].may_return.release()
    assert other.result(SECONDS) == 6
    assert not captured.done()
    first.may_return.release(2)
    assert (running.result(SECONDS), captured.result(SECONDS)) == (2, 4)


def test_calls_go_on_where_a_loader_cannot_be_added(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda hooked: reported.append(str(hooked.exc_value)))
    make = Maker(most=1)
    loaders = Loaders(make, 4)
    futures = [call(pool, loaders, at) for at in range(4)]
    make.made[0].may_return.release(4)
    assert [one.result(SECONDS) for one in futures] == [0, 2, 4, 6]
    until(lambda: reported)
    assert reported == ["no memory for a further loader"]

"""Dynamic batching: requests that fit together are computed in one call. Nothing here knows tensors or HTTP.

A request has a key and a number of rows. Requests with the same key form a batch, in the order of their arrival, up to
a number of rows. A batch begins when a worker is free and the batch is full or its first request has waited for the
delay; while all workers are busy, batches grow by themselves. If a call fails, its batch is halved and each half is
called again, so that only the requests that fail by themselves get the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fuseconv.serving.refusals import BusyError, DrainingError, LateError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """The limits of a batcher.

    Attributes:
        rows: the maximum number of rows in a batch. A request with more is a batch by itself.
        delay: the number of seconds that the first request of a batch waits for others while a worker is free.
        queue: the maximum number of requests that wait.
        timeout: the number of seconds after which a request is given up.
        workers: the number of batches that are computed at a time.
    """

    rows: int = 1
    delay: float = 0.002
    queue: int = 256
    timeout: float = 30.0
    workers: int = 1


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    rows: int
    since: float
    result: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Groups requests and calls them. It belongs to one event loop."""

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        limits: Limits,
        observe: Callable[[int, int, float], None] = lambda _requests, _rows, _waited: None,
    ) -> None:
        """Prepares a batcher.

        Args:
            call: computes the results of a batch.
            limits: the limits.
            observe: told the number of requests and rows of each batch, and the seconds that its first request waited.
        """
        self._call = call
        self._limits = limits
        self._observe = observe
        self._groups: dict[Hashable, deque[_Waiting[Item, Result]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0  # workers
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._draining = False

    @property
    def waiting(self) -> int:
        """The number of requests that no worker has begun yet."""
        return self._waiting

    async def submit(self, item: Item, key: Hashable, rows: int) -> Result:
        """Returns the result of a request, which is computed together with others of the same key.

        Raises:
            BusyError: too many requests wait.
            DrainingError: `drain` was called.
            LateError: the result was not there in time.
            Exception: what `call` raises for this request alone.
        """
        if self._draining:
            raise DrainingError("the server is shutting down", where="the server", fix="send the request to another")
        if self._waiting >= self._limits.queue:
            what = f"the queue is full: {self._waiting} requests wait"
            raise BusyError(what, where="the queue", fix="try again later, or start more servers")
        loop = asyncio.get_running_loop()
        one: _Waiting[Item, Result] = _Waiting(item, rows, loop.time(), loop.create_future())
        group = self._groups.setdefault(key, deque())
        group.append(one)
        self._waiting += 1
        self._begin()
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await one.result
        except TimeoutError:
            what = f"the outputs were not computed within {self._limits.timeout:g} s"
            raise LateError(what, where="the queue", fix="try again later, or raise --timeout") from None
        finally:
            if group and one in group:  # it is late, or its client has gone
                group.remove(one)
                self._waiting -= 1
                if not group:
                    del self._groups[key]

    async def drain(self) -> None:
        """Refuses further requests, and returns when those that wait are computed."""
        self._draining = True
        self._begin()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self) -> None:
        """Begins the batches that are due, and sets an alarm for the next one."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        loop = asyncio.get_running_loop()
        while self._groups and self._busy < self._limits.workers:
            due = {key: self._due(group) for key, group in self._groups.items()}
            key = min(due, key=due.__getitem__)
            if due[key] > loop.time():
                self._alarm = loop.call_at(due[key], self._begin)
                return
            self._busy += 1
            task = loop.create_task(self._run(self._taken(key)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _due(self, group: deque[_Waiting[Item, Result]]) -> float:
        """Returns the time at which a batch of the group begins: when it is full, or has waited for the delay."""
        rows = 0
        for one in group:
            rows += one.rows
            if rows >= self._limits.rows:
                return group[0].since
        return group[0].since + (0.0 if self._draining else self._limits.delay)

    def _taken(self, key: Hashable) -> list[_Waiting[Item, Result]]:
        """Removes the next batch of a group from the queue."""
        group = self._groups[key]
        batch = [group.popleft()]
        rows = batch[0].rows
        while group and rows + group[0].rows <= self._limits.rows:
            batch.append(group.popleft())
            rows += batch[-1].rows
        if not group:
            del self._groups[key]
        self._waiting -= len(batch)
        self._observe(len(batch), rows, asyncio.get_running_loop().time() - batch[0].since)
        return batch

    async def _run(self, batch: Sequence[_Waiting[Item, Result]]) -> None:
        """Computes a batch and delivers its results. Before that the worker begins the next batch."""
        settled = await self._settled(batch)
        self._busy -= 1
        self._begin()
        for one, result in settled:
            if one.result.done():  # it was given up
                continue
            if isinstance(result, Exception):
                one.result.set_exception(result)
            else:
                one.result.set_result(result)

    async def _settled(
        self, batch: Sequence[_Waiting[Item, Result]]
    ) -> list[tuple[_Waiting[Item, Result], Result | Exception]]:
        """Returns the result or the error of each request of a batch, which is computed in halves if it fails."""
        batch = [one for one in batch if not one.result.done()]
        if not batch:
            return []
        try:
            return list(zip(batch, await self._call([one.item for one in batch]), strict=True))
        except Exception as error:  # noqa: BLE001 - the request that caused it gets it
            if len(batch) == 1:
                return [(batch[0], error)]
        middle = len(batch) // 2
        return [*await self._settled(batch[:middle]), *await self._settled(batch[middle:])]

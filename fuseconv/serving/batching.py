"""Dynamic batching: runs compatible requests in one call. This module is independent of tensors and HTTP.

A request has a key and a number of rows. Requests with the same key form a batch, in the order of their arrival, up to
a maximum number of rows. A batch starts when a worker is free and either the batch is full or its first request has
waited for the delay. While all workers are busy, waiting batches keep growing. If a call fails, its batch is split into
halves and each half is run again, so that only the requests that fail on their own return an error.
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
        rows: the maximum number of rows in a batch. A request with more rows forms its own batch.
        delay: for how many seconds the first request of a batch waits for others while a worker is free.
        queue: the maximum number of waiting requests.
        timeout: the number of seconds after which a request times out.
        workers: the number of batches that run at the same time.
    """

    rows: int = 1
    delay: float = 0.002
    queue: int = 256
    timeout: float = 30.0
    workers: int = 1


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    """A submitted request.

    Attributes:
        item: the request.
        rows: the number of rows of the request.
        since: the time of the event loop in seconds at which the request was submitted.
        result: the future that receives the result or the exception.
    """

    item: Item
    rows: int
    since: float
    result: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Groups requests into batches and runs the batches. A batcher belongs to one event loop."""

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        limits: Limits,
        observe: Callable[[int, int, float], None] = lambda _requests, _rows, _waited: None,
    ) -> None:
        """Creates a batcher.

        Args:
            call: runs a batch, and returns one result per request, in the order of the requests.
            limits: the batch size, delay, queue length, timeout and number of workers.
            observe: called for each batch with its number of requests, its number of rows, and the seconds that its
                first request waited.
        """
        self._call = call
        self._limits = limits
        self._observe = observe
        self._groups: dict[Hashable, deque[_Waiting[Item, Result]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0  # the number of busy workers
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._draining = False

    @property
    def waiting(self) -> int:
        """The number of requests that no worker has started yet."""
        return self._waiting

    async def submit(self, item: Item, key: Hashable, rows: int) -> Result:
        """Runs a request in a batch with others of the same key, and returns its result.

        Raises:
            BusyError: too many requests are waiting.
            DrainingError: `drain` was called before.
            LateError: the request timed out.
            Exception: the exception that `call` raises for this request alone.
        """
        if self._draining:
            raise DrainingError(
                "the server is shutting down", where="the server", fix="send the request to another server"
            )
        if self._waiting >= self._limits.queue:
            what = f"the queue is full: {self._waiting} requests are waiting"
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
            if group and one in group:  # the request timed out, or its client disconnected
                group.remove(one)
                self._waiting -= 1
                if not group:
                    del self._groups[key]

    async def drain(self) -> None:
        """Refuses new requests, and waits until all accepted requests are done."""
        self._draining = True
        self._begin()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self) -> None:
        """Starts every batch that is due while workers are free, and sets a timer for the next batch."""
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
        """Returns the time at which the group's next batch is due, in seconds of the event loop's clock.

        A full batch is due at once. Other batches are due when their first request has waited for the delay.
        """
        rows = 0
        for one in group:
            rows += one.rows
            if rows >= self._limits.rows:
                return group[0].since
        return group[0].since + (0.0 if self._draining else self._limits.delay)

    def _taken(self, key: Hashable) -> list[_Waiting[Item, Result]]:
        """Removes the next batch of a group from the queue and returns it."""
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
        """Runs a batch and delivers its results. Frees the worker for the next batch before the delivery."""
        settled = await self._settled(batch)
        self._busy -= 1
        self._begin()
        for one, result in settled:
            if one.result.done():  # the request timed out, or its client disconnected
                continue
            if isinstance(result, Exception):
                one.result.set_exception(result)
            else:
                one.result.set_result(result)

    async def _settled(
        self, batch: Sequence[_Waiting[Item, Result]]
    ) -> list[tuple[_Waiting[Item, Result], Result | Exception]]:
        """Runs a batch, or its halves if the batch fails. Returns each request with its result or its exception.

        Leaves out the requests that have timed out or whose clients have disconnected.
        """
        batch = [one for one in batch if not one.result.done()]
        if not batch:
            return []
        try:
            return list(zip(batch, await self._call([one.item for one in batch]), strict=True))
        except Exception as error:  # noqa: BLE001 - returned to the request that caused it
            if len(batch) == 1:
                return [(batch[0], error)]
        middle = len(batch) // 2
        return [*await self._settled(batch[:middle]), *await self._settled(batch[middle:])]

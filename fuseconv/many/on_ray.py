"""Workers on a Ray cluster: one Ray task per attempt. A model whose worker or node ends is attempted again.

Ray's own retries are off: this process counts the attempts, and takes the result of one attempt per model.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from fuseconv.errors import FuseconvError, UnsupportedError, UpstreamError
from fuseconv.many.attempt import Task, attempt
from fuseconv.many.conversion import Children
from fuseconv.many.row import Row

MAX_LOST = 3
"""The number of workers that may end during the attempts at one model. After that, the model has failed."""

LOST = (WorkerCrashedError, NodeDiedError, OutOfMemoryError, ObjectLostError)
"""What Ray raises for the result of a task whose worker or node has ended."""

STORE = 128 * 2**20
"""The size of the object store of a local cluster in bytes. Only tasks and rows pass through it."""


@dataclass(frozen=True)
class Cluster:
    """Workers on the nodes of a Ray cluster.

    Attributes:
        address: the address of the cluster as for `ray.init`, such as `auto` or `ray://HOST:10001`. `local` starts a
            cluster on this machine, which ends with the run.
        jobs: the maximum number of attempts that run at the same time. None for as many as the cluster has room for.
        cpus: the number of CPU cores that each attempt reserves.
        gpus: the number of GPUs that each attempt reserves.
    """

    address: str
    jobs: int | None = None
    cpus: float = 1
    gpus: float = 0

    def attempts(self, tasks: Sequence[Task]) -> Generator[Row]:
        """Converts the models, as `run.Workers` describes.

        Raises:
            UpstreamError: there is no cluster at the address.
            UnsupportedError: a node has another version of fuseconv.
        """
        reserved = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        remote = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **reserved)(_attempt)
        waiting, lost = deque(tasks), Counter[str]()
        running: dict[Any, Task] = {}
        with _connected(self.address), _cancelled(running):
            while waiting or running:
                while waiting and (self.jobs is None or len(running) < self.jobs):
                    task = waiting.popleft()
                    running[remote.options(name=f"convert {task.entry.name}").remote(task)] = task
                (ready,), _ = ray.wait(list(running), num_returns=1)
                task = running.pop(ready)
                name = task.entry.name
                try:
                    row: Row = ray.get(ready)
                except LOST as error:
                    lost[name] += 1
                    if lost[name] < MAX_LOST:
                        waiting.appendleft(task)
                        continue
                    row = task.failed(_lost(error))
                except RayTaskError as error:
                    raise _told(error) from None
                yield replace(row, tries=row.tries + lost[name])


def _attempt(task: Task) -> Row:
    """Makes an attempt in a worker of Ray."""
    node = f"{platform.node()}/{ray.get_runtime_context().get_node_id()[:8]}"
    return attempt(task, Children(), node)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connects this process to a cluster for the block, in which SIGTERM raises KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: SIGTERM arrived while Ray started.
        UpstreamError: there is no cluster at the address.
    """
    own = {"include_dashboard": False, "object_store_memory": STORE} if address == "local" else {}
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(sys.stderr):  # a thread of Ray prints when a worker ends
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except SystemExit as error:  # from Ray's own handler of SIGTERM
            raise KeyboardInterrupt from error
        except (ConnectionError, RayError, RuntimeError, ValueError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UpstreamError(
                f"Ray cannot be reached: {' '.join(dict.fromkeys((lines[0], lines[-1])))}",
                where=f"--ray {address}",
                fix="start a cluster with `ray start --head`, or use --ray local",
            ) from error
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray's handler would leave attempts running
            yield
        finally:
            ray.shutdown()
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _cancelled(running: dict[Any, Task]) -> Iterator[None]:
    """Cancels the attempts that are left at the end of the block, and gives them time to remove what they wrote."""
    try:
        yield
    finally:
        for one in running:
            ray.cancel(one)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=10)


def _told(error: RayTaskError) -> Exception:
    """Returns the exception of an attempt that Ray has wrapped, or says that the node could not read the task."""
    if isinstance(error.cause, RaySystemError):
        return UnsupportedError(
            f"a node cannot read the task: {str(error.cause).splitlines()[0]}",
            where="the cluster",
            fix="install the same version of fuseconv on every node",
        )
    return error.cause if isinstance(error.cause, FuseconvError) else error


def _lost(error: Exception) -> UpstreamError:
    """Returns the error of a model whose workers ended `MAX_LOST` times. `error` is the last one that Ray raised."""
    return UpstreamError(
        f"{MAX_LOST} workers ended during the conversion; the last one: {type(error).__name__}",
        where="the cluster",
        fix="give each conversion more memory: use fewer --jobs, or raise --cpus",
    )

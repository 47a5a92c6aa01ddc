"""Workers in this process: threads, each of which waits for the child process of its conversion."""

from __future__ import annotations

import platform
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from fuseconv.many.attempt import Task, attempt
from fuseconv.many.conversion import Children
from fuseconv.many.row import Row


@dataclass(frozen=True)
class Pool:
    """Workers on this machine.

    Attributes:
        jobs: the number of conversions that run at the same time.
    """

    jobs: int = 1

    def attempts(self, tasks: Sequence[Task]) -> Generator[Row]:
        """Converts the models, as `run.Workers` describes."""
        children = Children()
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                futures = [pool.submit(attempt, task, children, platform.node()) for task in tasks]
                for future in as_completed(futures):
                    yield future.result()
            finally:
                children.stop()
                pool.shutdown(cancel_futures=True)

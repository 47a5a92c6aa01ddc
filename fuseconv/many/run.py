"""Converts the models of a list with workers, moves each bundle to the output folder, and stores a row per model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from fuseconv.many.attempt import Task
from fuseconv.many.conversion import How
from fuseconv.many.fingerprint import environment
from fuseconv.many.listing import Entry
from fuseconv.many.output import held, publish, record
from fuseconv.many.row import Row


class Workers(Protocol):
    """Where the attempts are made: `pool.Pool` or `on_ray.Cluster`."""

    def attempts(self, tasks: Sequence[Task]) -> Generator[Row]:
        """Calls `attempt.attempt` for each task, and yields one row per task as soon as it is complete.

        If the generator is closed before its end, as after an interrupt, no attempt goes on.
        """


def convert_many(
    entries: Sequence[Entry], folder: Path, workers: Workers, how: How, done: Callable[[Row], None] = lambda _row: None
) -> tuple[Row, ...]:
    """Converts models to bundles `NAME.fuseconv` in a folder, and writes each result to `NAME.json` in this folder.

    Args:
        entries: the models to convert, with their options. Their paths are absolute.
        folder: the output folder. It is created if it does not exist.
        workers: where the models are converted.
        how: the settings for retries and time limits.
        done: called in this thread with each row, as soon as the row is complete.

    Returns:
        One row per model, in the order of `entries`. A failing model does not stop the others.

    Raises:
        UsageError: another run writes to the folder.
        FileError: a machine does not see the folder.
        UnsupportedError: a machine has other versions than this process.
        OSError: the folder or a row cannot be written.
    """
    folder = folder.absolute()
    rows: dict[str, Row] = {}
    with held(folder) as run:
        tasks = [Task(entry, folder, run, how, environment()) for entry in entries]
        with closing(workers.attempts(tasks)) as attempts:
            for row in attempts:
                if row.status != "kept":
                    row = publish(row, folder) if row.status == "made" else record(row, folder)  # noqa: PLW2901
                rows[row.name] = row
                done(row)
    return tuple(rows[entry.name] for entry in entries)

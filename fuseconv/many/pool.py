"""Converts the models of a list in parallel, and skips bundles that are up to date. Stores one JSON row per model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import SUFFIX
from fuseconv.errors import FuseconvError
from fuseconv.many import attempt
from fuseconv.many.attempt import Row, Stopped
from fuseconv.many.fingerprint import fingerprint
from fuseconv.many.listing import Entry, Options


@dataclass(frozen=True)
class How:
    """How a list is converted.

    Attributes:
        jobs: the number of conversions that run at the same time.
        tries: the maximum number of tries of a conversion that fails for a transient reason.
        limit: the time limit of one try in seconds.
        again: whether to convert a model again even if its bundle is up to date.
        defaults: the options from the project's settings. A change of these options makes bundles out of date.
    """

    jobs: int = 1
    tries: int = 2
    limit: float = 3600.0
    again: bool = False
    defaults: Options = field(default_factory=dict)


def convert_many(
    entries: Sequence[Entry], folder: Path, how: How, done: Callable[[Row], None] = lambda _row: None
) -> tuple[Row, ...]:
    """Converts models to bundles `NAME.fuseconv` in a folder, and writes each result to `NAME.json` in this folder.

    Args:
        entries: the models to convert, with their options.
        folder: the output folder. It is created if it does not exist.
        how: the settings for parallel jobs, retries and time limits.
        done: called in this thread with each row, as soon as the row is complete.

    Returns:
        One row per model, in the order of `entries`. A failing model does not stop the others.

    Raises:
        OSError: the folder or a row cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stopped = Stopped()
    with ThreadPoolExecutor(how.jobs) as pool:
        futures: dict[Future[Row], int] = {
            pool.submit(_one, entry, folder, how, stopped): at for at, entry in enumerate(entries)
        }
        rows: dict[int, Row] = {}
        try:
            for future in as_completed(futures):
                row = rows[futures[future]] = future.result()
                (folder / f"{row.name}.json").write_text(json.dumps(row.to_json(), indent=1) + "\n")
                done(row)
        except BaseException:  # such as an interrupt: no child may outlive this process
            stopped.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(rows[at] for at in range(len(entries)))


def _one(entry: Entry, folder: Path, how: How, stopped: Stopped) -> Row:
    """Returns the stored row of an up-to-date bundle, or converts the model and returns the new row."""
    try:
        made_from = fingerprint(entry, how.defaults)
    except FuseconvError as error:
        status = error.exit_status
        return Row(entry.name, str(entry.model), "failed", error=str(error), exit_status=status)
    if not how.again and (row := finished(folder, entry.name, made_from)) is not None:
        return row
    row = attempt.convert(entry, folder, tries=how.tries, limit=how.limit, stopped=stopped, fingerprint=made_from)
    return row if row.status == "failed" else replace(row, manifest=_manifest(folder, entry.name))


def finished(folder: Path, name: str, made_from: str) -> Row | None:
    """Returns the stored row of a bundle with the status `kept`, or None if the bundle must be converted again.

    Args:
        folder: the folder that contains the bundle `NAME.fuseconv` and the row `NAME.json`.
        name: the name of the model.
        made_from: the current fingerprint. The row must contain this fingerprint and the hash of the bundle's manifest.
    """
    try:
        found = json.loads((folder / f"{name}.json").read_text())
        row = Row(**{**found, "targets": tuple(found["targets"])})
        same = (row.fingerprint, row.manifest) == (made_from, _manifest(folder, name))
    except (OSError, ValueError, TypeError, KeyError):  # the row is missing, or was written by another version
        return None
    return replace(row, status="kept") if same and row.status != "failed" else None


def _manifest(folder: Path, name: str) -> str:
    """Returns the SHA-256 of the manifest of the bundle `NAME.fuseconv` in a folder."""
    return hashlib.sha256((folder / f"{name}{SUFFIX}" / MANIFEST).read_bytes()).hexdigest()

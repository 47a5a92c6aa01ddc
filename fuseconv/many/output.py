"""The output folder of a list: the finished bundles, their rows, and the folder in which new bundles wait.

Only the process that runs the list moves bundles into the output folder, one per model. An attempt, which may run on
another machine, leaves its bundle in the folder of the run, `.convert-many/RUN`. If the attempt was given up, nothing
takes its bundle from there, and the folder is removed with the run. This module does not import torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import SUFFIX, check_replaceable
from fuseconv.bundle.staging import flush, put, restore
from fuseconv.bundle.whole_file import write_whole
from fuseconv.errors import FileError, UsageError
from fuseconv.many.row import Row

HIDDEN = ".convert-many"
"""The folder in the output folder that contains the lock and the folder of the run."""


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Holds the output folder for one run, and yields the folder of the run, in which finished bundles wait.

    Creates the output folder if it does not exist, and removes what killed runs left in it.

    Raises:
        UsageError: another run holds the output folder.
        OSError: the folder cannot be written.
    """
    hidden = folder / HIDDEN
    hidden.mkdir(parents=True, exist_ok=True)
    with (hidden / "lock").open("w") as lock:  # NFS locks only files that are open for writing
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "another convert-many writes to this folder",
                where=str(folder),
                fix="wait until it has ended, or choose another folder with -o",
            ) from error
        for left in hidden.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
        run = hidden / secrets.token_hex(8)
        run.mkdir()
        try:
            yield run
        finally:
            shutil.rmtree(run, ignore_errors=True)  # an attempt that was given up may still write to it


def bundle_of(name: str, folder: Path) -> Path:
    """Returns the path of the bundle of a model in the output folder."""
    return folder / f"{name}{SUFFIX}"


def stage(row: Row, run: Path) -> Row:
    """Moves a new bundle to the folder of the run, from any file system, and flushes it to the disk.

    Returns:
        The row with the new path of the bundle, and with the hash of its manifest.

    Raises:
        FileError: the bundle cannot be written, or the run has ended.
    """
    bundle, place = Path(row.bundle), run / f"{row.name}-{secrets.token_hex(4)}"
    try:
        place.mkdir()
        shutil.move(bundle, place)
        flush(place)
    except OSError as error:
        raise FileError(
            f"the bundle cannot be moved to the output folder: {error.strerror or error}",
            where=str(error.filename or place),
            fix="free disk space, or choose another folder with -o",
        ) from error
    return replace(row, bundle=str(place / bundle.name), manifest=manifest_hash(place / bundle.name))


def publish(row: Row, folder: Path) -> Row:
    """Moves a bundle from the folder of the run to the output folder, where it replaces an older one atomically.

    The row is written first. If this process is killed between the two steps, the row does not belong to the bundle
    that is there, and the next run converts the model again.

    Raises:
        UsageError: the path of the bundle exists and is not a bundle.
        OSError: the bundle or the row cannot be written.
    """
    staged, bundle = Path(row.bundle), bundle_of(row.name, folder)
    row = record(replace(row, bundle=str(bundle)), folder)
    restore(bundle)
    put(staged, bundle, check_replaceable)
    shutil.rmtree(staged.parent)  # what is left of the attempt: the bundle that was replaced, or nothing
    return row


def record(row: Row, folder: Path) -> Row:
    """Writes a row to `NAME.json` in the output folder, atomically, and returns the row. Raises OSError."""
    path = folder / f"{row.name}.json"
    write_whole(path, f"{json.dumps(row.to_json(), indent=1)}\n".encode())
    return row


def finished(folder: Path, name: str, made_from: str) -> Row | None:
    """Returns the stored row of a bundle with the status `kept`, or None if the bundle must be converted again.

    Args:
        folder: the folder that contains the bundle `NAME.fuseconv` and the row `NAME.json`.
        name: the name of the model.
        made_from: the current fingerprint. The row must contain this fingerprint and the hash of the bundle's manifest.
    """
    bundle = bundle_of(name, folder)
    try:
        found = json.loads((folder / f"{name}.json").read_text())
        row = Row(**{**found, "targets": tuple(found["targets"]), "bundle": str(bundle)})
        same = (row.fingerprint, row.manifest) == (made_from, manifest_hash(bundle))
    except (OSError, ValueError, TypeError, KeyError):  # the row is missing, or was written by another version
        return None
    return replace(row, status="kept") if same and row.status != "failed" else None


def manifest_hash(bundle: Path) -> str:
    """Returns the SHA-256 of the manifest of a bundle. Raises OSError if it cannot be read."""
    return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()

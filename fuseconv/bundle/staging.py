"""Replacing a folder in one step, so that whoever looks sees the old one or the new one, whole.

The new folder is filled as a hidden sibling, flushed to the disk, and exchanged with the old one by one system call.
While it is filled its writer holds a lock on it; a sibling that nobody holds was left by a run that was killed, and
the next run removes it. Nothing here knows what the folder holds.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseconv.errors import FileError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def staged(output: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `output` when the block ends without an error.

    Two runs may write one output: each fills its own folder, and the last to end wins.

    Args:
        output: the folder to make or replace.
        check: called with `output`, at the start and again just before it is replaced, if it exists; it raises if the
            folder must not be replaced.

    Raises:
        FileError: a file cannot be written; `output` is as it was.
    """
    output = output.absolute()
    _check_existing(output, check)  # before its name is used: the root has none
    try:
        _check_parents(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        with _locked(output.parent):
            _remove_leftovers(output)
            _check_existing(output, check)
            staging = output.with_name(f"{_prefix(output)}{secrets.token_hex(4)}")
            staging.mkdir()
            lock = _lock(staging)
        try:
            yield staging
            flush(staging)
            with _locked(output.parent):
                _check_existing(output, check)
                _put_in_place(staging, output)
        finally:
            # What is left at the staging name: nothing, the folder just replaced, or an unfinished one.
            with _locked(output.parent):
                shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise FileError(
            f"the folder cannot be written: {error.strerror or error}",
            where=str(error.filename or output),
            fix="free disk space or choose another output folder; the previous contents are unchanged",
        ) from error


def flush(folder: Path) -> None:
    """Flushes every file and folder under `folder` to the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _prefix(output: Path) -> str:
    return f".{output.name}.staging-"


def _previous(output: Path) -> Path:
    return output.with_name(f".{output.name}.previous")


def _remove_leftovers(output: Path) -> None:
    """Removes the folders of runs that are no more, those that no process holds a lock on, and ends their renames."""
    if _previous(output).exists() and not os.path.lexists(output):
        _previous(output).rename(output)
    for leftover in output.parent.iterdir():
        if not leftover.name.startswith(_prefix(output)):
            continue
        try:
            lock = _lock(leftover)
        except BlockingIOError:
            continue  # its writer is alive
        shutil.rmtree(leftover)
        os.close(lock)


def _check_existing(output: Path, check: Callable[[Path], None]) -> None:
    if os.path.lexists(output):
        check(output)


def _check_parents(output: Path) -> None:
    """Checks that the nearest parent that exists is a folder."""
    parent = next(parent for parent in output.parents if os.path.lexists(parent))
    if not parent.is_dir():
        kind = "a file" if parent.exists() else "a broken symbolic link"
        raise FileError(
            f"the parent of the output is {kind}, not a folder",
            where=str(parent),
            fix="choose an output path whose parent is a folder or does not exist yet",
        )


def _put_in_place(staging: Path, output: Path) -> None:
    """Renames, or exchanges the two names if there is an old folder; the old one is then at the staging name."""
    if not os.path.lexists(output):
        staging.rename(output)
    else:
        _exchange(staging, output)
    parent = os.open(output.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _exchange(first: Path, second: Path) -> None:
    """Swaps two names in one step: renameat2, which Python does not offer."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(second))
    # No exchange on this file system, NFS for one. After a kill between the two renames the next run undoes the first.
    second.rename(_previous(second))
    first.rename(second)
    _previous(second).rename(first)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, so that nobody removes a sibling between its making and its locking."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

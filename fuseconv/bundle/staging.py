"""Replaces a folder atomically: a reader sees either the complete old folder or the complete new one.

The new folder is filled as a hidden sibling, flushed to disk, and exchanged with the old one by one system call. While
it is filled, the writer holds a lock on it. A sibling without a lock was left by a killed process and is removed by the
next run. On a file system that several machines share, such as NFS, a machine does not see the locks of the others:
the sibling of another machine is removed when it is a day old. This module does not depend on the contents of the
folder.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fuseconv.errors import FileError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_BOOT = Path("/proc/sys/kernel/random/boot_id")

_OLD = 24 * 3600.0
"""The age in seconds from which a folder of another machine is one of a killed process."""


@contextmanager
def staged(output: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yields an empty folder that replaces `output` when the block ends without an error.

    Two processes may write the same output: each fills its own folder, and the last one to finish wins.

    Args:
        output: the folder to create or replace.
        check: if `output` exists, is called with it at the start and again just before the replacement. It raises an
            error if the folder must not be replaced.

    Raises:
        FileError: a file cannot be written. `output` is unchanged.
    """
    output = output.absolute()
    _check_existing(output, check)  # before its name is used, because the root has no name
    try:
        _check_parents(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        with locked(output.parent):
            _remove_leftovers(output)
            _check_existing(output, check)
            staging = output.with_name(f"{_prefix(output)}{machine()}-{secrets.token_hex(4)}")
            staging.mkdir()
            lock = _lock(staging)
        try:
            yield staging
            flush(staging)
            with locked(output.parent):
                put(staging, output, check)
        finally:
            # The staging path now holds nothing, the folder that was just replaced, or an unfinished folder.
            with locked(output.parent):
                shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        where, kept = error.filename or output, "the previous contents are unchanged"
        raise FileError.unwritable("the folder cannot be written", error, where, kept) from error


def put(folder: Path, output: Path, check: Callable[[Path], None]) -> None:
    """Moves a complete folder to `output` on the same file system. If `output` exists, the two are exchanged.

    Args:
        folder: the folder to move. Its files must have been flushed.
        output: the new path of the folder.
        check: called with `output` if it exists. Raises an error if it must not be replaced.

    Raises:
        OSError: the folder cannot be moved.
    """
    _check_existing(output, check)
    _put_in_place(folder, output)


def restore(output: Path) -> None:
    """Undoes a replacement of `output` that a killed process left half done, as `_exchange` describes."""
    if previous(output).exists() and not os.path.lexists(output):
        previous(output).rename(output)


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


def previous(output: Path) -> Path:
    """Returns the name of the old folder during a replacement on a file system that cannot exchange two names."""
    return output.with_name(f".{output.name}.previous")


def _remove_leftovers(output: Path) -> None:
    """Removes the staging folders that killed processes left behind, and restores a folder that they had renamed.

    A staging folder without a lock belongs to a process that has ended, or to another machine.
    """
    restore(output)
    for leftover in output.parent.iterdir():
        if not leftover.name.startswith(_prefix(output)):
            continue
        if not leftover.name.startswith(f"{_prefix(output)}{machine()}-") and _age(leftover) < _OLD:
            continue
        try:
            lock = _lock(leftover)
        except BlockingIOError:
            continue  # the process that writes this folder is still running
        shutil.rmtree(leftover)
        os.close(lock)


def _age(folder: Path) -> float:
    """Returns the seconds since the last change of a folder or of one that it contains."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    return time.time() - max(path.stat().st_mtime for path in folders)


@cache
def machine() -> str:
    """Returns a name of this machine since it was started: all processes that see the same locks have the same name."""
    text = _BOOT.read_text() if _BOOT.exists() else platform.node()
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _check_existing(output: Path, check: Callable[[Path], None]) -> None:
    if os.path.lexists(output):
        check(output)


def _check_parents(output: Path) -> None:
    """Checks that the nearest existing parent is a folder."""
    parent = next(parent for parent in output.parents if os.path.lexists(parent))
    if not parent.is_dir():
        kind = "a file" if parent.exists() else "a broken symbolic link"
        raise FileError(
            f"the parent of the output is {kind}, not a folder",
            where=str(parent),
            fix="choose an output path whose parent is a folder or does not exist yet",
        )


def _put_in_place(staging: Path, output: Path) -> None:
    """Renames the staging folder to `output`; if `output` exists, exchanges the two names, and flushes the parent."""
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
    """Exchanges two names atomically with renameat2, which Python does not expose."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(second))
    # This file system (such as NFS) cannot exchange names. If the process is killed between the first two renames, the
    # next run undoes the first.
    second.rename(previous(second))
    first.rename(second)
    previous(second).rename(first)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on a folder for the block; waits until no other process holds the lock.

    The lock prevents another process from removing a new staging folder before its own lock is taken. The block must
    not lock the same folder again, because it would wait for itself.

    Raises:
        OSError: the folder cannot be opened.
    """
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

"""Reads a bundle that another process may replace in the meantime: wholly the old bundle, or wholly the new one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.methods import METHODS
from fuseconv.bundle.staging import previous
from fuseconv.errors import FileError, FuseconvError
from fuseconv.untrusted.files import read_plain

T = TypeVar("T")

_TRIES = 20

_WAIT = 0.05
"""The time in seconds after which a bundle is read again."""


def unreplaced(folder: Path, read: Callable[[], T]) -> T:
    """Returns what `read` returns if the bundle was not replaced while `read` ran; otherwise, calls `read` again.

    Without this, files of two bundles meet: a file has not the hash in the manifest, is missing, or has the weights of
    the other bundle. On a file system that cannot exchange two names, such as NFS, a bundle that is being replaced does
    not exist for a moment.

    Args:
        folder: the folder of the bundle, or of one of its methods.
        read: reads the bundle. Its errors are raised if the bundle was not replaced.

    Raises:
        FileError: the bundle was replaced during each of the calls.
    """
    was_replaced, error = False, None
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            result = read()
        except (FuseconvError, OSError) as caught:
            error = caught
            if before == _identity(folder) and (before is not None or not _is_moved(folder)):
                raise
        else:
            if before == _identity(folder):
                return result
        was_replaced |= before != _identity(folder)
        time.sleep(_WAIT)
    if error is not None and not was_replaced:  # whoever was to replace it has ended in between
        raise error
    raise FileError(
        f"the bundle was replaced {_TRIES} times while it was read", where=str(folder), fix="replace it less often"
    )


def unchanged(folder: Path, check: Callable[[Path], None]) -> Callable[[Path], None]:
    """Returns a check that a bundle may be replaced: `check` passes, and no other process has replaced it since now.

    Args:
        folder: the folder of the bundle.
        check: checks what is there, as `staging.staged` expects it.
    """
    before = _manifest(folder)

    def checked(path: Path) -> None:
        check(path)
        if _manifest(folder) != before:
            raise FileError(
                "another process has changed the bundle in the meantime", where=str(folder), fix="run the command again"
            )

    return checked


def _manifest(folder: Path) -> bytes:
    try:
        return read_plain(folder / MANIFEST)
    except OSError:
        return b""


def _is_moved(folder: Path) -> bool:
    """Returns whether another process has just moved the bundle away to replace it; see `staging.previous`."""
    folder = folder.absolute()  # the path "." has no name
    bundles = (folder, folder.parents[1]) if folder.parent.name == METHODS else (folder,)
    return any(previous(bundle).exists() for bundle in bundles)


def _identity(folder: Path) -> tuple[int, int, bytes] | None:
    """Returns what differs between two bundles that had a path one after the other, or None if there is no folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, _manifest(folder)

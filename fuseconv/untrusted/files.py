"""Opening what comes from outside: the one place where the path of a stranger's file becomes bytes.

A path may lead to a pipe that nobody writes to, to a device that never ends, or to a file that is larger than memory.
What is opened here is a plain file, and is read up to a limit. Links are followed: a path is the user's to choose, and
caches of models are made of links; where a folder must hold its files itself, `links=False` says so.

What runs as code besides may be changed by nobody but the user: see `check_unshared`.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

from fuseconv.errors import RefusedError, UsageError

TEXT_LIMIT = 64 << 20
"""The most bytes of a file of text that is read whole, in bytes: a manifest or a plan of 100,000 nodes fits."""

_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder, not a file"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
)


def open_plain(path: Path, *, links: bool = True) -> BufferedReader:
    """Opens a plain file for reading, and never waits.

    Args:
        path: the file.
        links: whether the path itself may be a symbolic link.

    Raises:
        OSError: it cannot be opened, or is no plain file; `strerror` says which.
    """
    try:
        # What is no plain file is not even opened: to open a device may set it going. The second look is at what was
        # opened, and that cannot be exchanged any more.
        _check_kind(path.stat(follow_symlinks=links), path)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags if links else flags | os.O_NOFOLLOW)
    except ValueError:  # a NUL, or a character that no file name can have
        raise OSError(errno.EINVAL, "no file can have this name", repr(str(path))) from None
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, limit: int | None = TEXT_LIMIT, *, links: bool = True) -> bytes:
    """Reads a plain file whole.

    Args:
        path: the file.
        limit: the most bytes; None for tensors, which are as large as they are.
        links: as `open_plain` takes it.

    Raises:
        OSError: as `open_plain`, or the file is larger than the limit.
    """
    with open_plain(path, links=links) as file:
        data = file.read(-1 if limit is None else limit + 1) or b""
    if limit is not None and len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return data


def check_plain(path: Path, *, links: bool = True) -> os.stat_result:
    """Checks a file that a library opens by its path; returns its measures.

    Raises:
        OSError: as `open_plain`.
    """
    with open_plain(path, links=links) as file:
        return os.fstat(file.fileno())


def is_plain(path: Path) -> bool:
    """Says whether a path leads to a plain file; a name that no file can have leads to none."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def leads_somewhere(path: Path) -> bool:
    """Says whether there is a file, a folder or anything else; a link to itself leads nowhere."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        return error.errno not in (errno.ELOOP, errno.ENAMETOOLONG)
    return True


def check_text(path: Path) -> None:
    """Checks that a path is text: torch, safetensors and the runtimes take no other.

    Raises:
        UsageError: it, or the working directory that it is relative to, is not UTF-8.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the path is not valid UTF-8, which the underlying libraries require",
            where=str(path.absolute()),
            fix="rename the file or its folder, and pass the new path",
        ) from None


def check_unshared(paths: Iterable[Path]) -> None:
    """Checks that nobody but the user and root may change files from which code is loaded, or their folders.

    A file that its owner's own group may write is as a umask of 002 leaves it, and is fine where that group has no
    other member. In a folder with the sticky bit, as /tmp, nobody can exchange what is another's.

    Raises:
        RefusedError: somebody may; the error names the file or folder, and what to do.
        OSError: there is no such file.
    """
    for path in paths:
        found = path.stat()
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()):
            raise RefusedError(
                f"{path.name}, from which code is loaded, belongs to another user",
                where=str(path),
                fix=f"if you trust its author, make your own copy, or chown it to {_user(os.geteuid())}",
            )
        if found.st_mode & stat.S_IWOTH and not sticky:
            raise RefusedError(
                f"{path.name}, from which code is loaded, is writable by everyone",
                where=str(path),
                fix=f"chmod o-w {path}",
            )
        if found.st_mode & stat.S_IWGRP and not sticky and not _is_private(found.st_gid, found.st_uid):
            raise RefusedError(
                f"{path.name}, from which code is loaded, is writable by a group",
                where=str(path),
                fix=f"chmod g-w {path}",
            )


def _check_kind(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    for is_kind, code, words in _KINDS:
        if is_kind(found.st_mode):
            raise OSError(code, words, str(path))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_private(gid: int, uid: int) -> bool:
    """Says whether a group is its user's own: it has the user's number or name, and no other member."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    return (gid == uid or group.gr_name == _user(uid)) and set(group.gr_mem) <= {_user(uid)}

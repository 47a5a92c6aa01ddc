"""Opens untrusted files. All other modules open such files through this module.

A path may lead to a pipe without a writer, an endless device, or a file larger than memory. Therefore only regular
files are opened, and reading stops at a size limit. Symbolic links are followed by default, because the user chooses
the path and model caches consist of links. `links=False` rejects a link, for folders whose files must not be elsewhere.

A file that is run as code must also be protected from changes by other users; see `check_unshared`.
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
"""The default maximum size in bytes of a file that is read. It is enough for a manifest or plan of 100,000 nodes."""

_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder, not a file"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
)


def open_plain(path: Path, *, links: bool = True) -> BufferedReader:
    """Opens a regular file for reading without blocking.

    Args:
        path: the file.
        links: whether the path itself may be a symbolic link.

    Raises:
        OSError: the file cannot be opened or is not a regular file. `strerror` gives the reason.
    """
    try:
        # The first check prevents opening a device, because this may already start the device. The second check, after
        # opening, is on the open file, which can no longer be replaced.
        _check_kind(path.stat(follow_symlinks=links), path)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags if links else flags | os.O_NOFOLLOW)
    except ValueError:  # a NUL, or a character that is not allowed in file names
        raise OSError(errno.EINVAL, "no file can have this name", repr(str(path))) from None
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, limit: int | None = TEXT_LIMIT, *, links: bool = True) -> bytes:
    """Returns the contents of a regular file.

    Args:
        path: the file.
        limit: the maximum size of the file in bytes. None for no limit, as for files of tensors.
        links: whether the path itself may be a symbolic link.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or is larger than the limit.
    """
    with open_plain(path, links=links) as file:
        data = file.read(-1 if limit is None else limit + 1) or b""
    if limit is not None and len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return data


def check_plain(path: Path, *, links: bool = True) -> os.stat_result:
    """Returns the status of a regular file, or raises an error if the path does not lead to a regular file.

    Use it for a file that a library opens by its path.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
    """
    with open_plain(path, links=links) as file:
        return os.fstat(file.fileno())


def is_plain(path: Path) -> bool:
    """Returns whether a path leads to a regular file. Returns False if the path does not exist or is invalid."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def leads_somewhere(path: Path) -> bool:
    """Returns whether a path leads to a file, a folder or anything else. Returns False for a link to itself.

    Returns True if the path cannot be examined, for example because a permission is missing.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        return error.errno not in (errno.ELOOP, errno.ENAMETOOLONG)
    return True


def check_text(path: Path) -> None:
    """Raises an error if a path is not valid UTF-8, which torch, safetensors and the runtimes require.

    Raises:
        UsageError: the path, or the working directory to which it is relative, is not valid UTF-8.
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
    """Raises an error if a user other than the current user and root can change a file from which code is loaded.

    A path that is writable by a group is accepted if the group is the owner's private group and has no other members,
    as with a umask of 002. A folder with the sticky bit, such as /tmp, may be writable by others, because they cannot
    replace other users' files in it.

    Args:
        paths: the files, and the folders that contain them.

    Raises:
        RefusedError: another user can change a file or folder. The error names the file or folder and the fix.
        OSError: a file or folder does not exist.
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
    """Raises `OSError` if a file status is not that of a regular file."""
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    for is_kind, code, words in _KINDS:
        if is_kind(found.st_mode):
            raise OSError(code, words, str(path))


def _user(uid: int) -> str:
    """Returns the name of a user, or the number as text if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_private(gid: int, uid: int) -> bool:
    """Returns whether a group is a user's private group: it has the user's number or name, and no other members."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    return (gid == uid or group.gr_name == _user(uid)) and set(group.gr_mem) <= {_user(uid)}

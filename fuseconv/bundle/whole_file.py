"""Writes a file wholly or not at all: if writing fails, for example on a full disk, the old contents stay."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replaces the contents of a file, or creates the file. A reader sees the old contents or the new ones.

    The file keeps its permissions, and a symbolic link stays a link. A path that is no regular file, an open file such
    as /dev/stdout, and a file in a folder in which no file can be created, are written in place.

    Raises:
        OSError: the file cannot be written.
    """
    place = path.resolve()
    is_open = path.absolute().is_relative_to("/dev") or path.absolute().is_relative_to("/proc")
    if path.exists() and (is_open or not path.is_file() or not os.access(place.parent, os.W_OK)):
        path.write_bytes(content)
        return
    partial = place.with_name(f".fuseconv-{secrets.token_hex(8)}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, partial)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)

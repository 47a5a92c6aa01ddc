"""Copies a bundle with hard links, so that the copy shares the files of the original."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fuseconv.bundle.files import SIGNATURE


def link(folder: Path, staging: Path) -> None:
    """Copies all files of a bundle to another folder, as hard links where the file system supports them.

    The signature is left out, because it will not be valid once the copy has been changed.

    Args:
        folder: the bundle to copy.
        staging: the folder into which the files are copied. It may already exist.
    """

    def copy(source: str, destination: str) -> None:
        try:
            os.link(source, destination)
        except OSError:
            shutil.copy2(source, destination)

    def unsigned(inside: str, _names: list[str]) -> list[str]:
        return [SIGNATURE] if Path(inside) == folder else []

    shutil.copytree(folder, staging, copy_function=copy, dirs_exist_ok=True, ignore=unsigned)

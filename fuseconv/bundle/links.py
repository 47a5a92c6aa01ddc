"""Makes copies of a bundle that share its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fuseconv.bundle.files import SIGNATURE


def link(folder: Path, staging: Path) -> None:
    """Fills a folder with the files of another folder, as hard links where the file system supports them.

    The signature is left out, because it would not be valid for what the copy will become.
    """

    def copy(source: str, destination: str) -> None:
        try:
            os.link(source, destination)
        except OSError:
            shutil.copy2(source, destination)

    def unsigned(inside: str, _names: list[str]) -> list[str]:
        return [SIGNATURE] if Path(inside) == folder else []

    shutil.copytree(folder, staging, copy_function=copy, dirs_exist_ok=True, ignore=unsigned)

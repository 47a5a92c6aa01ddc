"""Copies of a bundle that share its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link(folder: Path, staging: Path) -> None:
    """Fills a folder with the files of another, as links where the file system has them."""

    def copy(source: str, destination: str) -> None:
        try:
            os.link(source, destination)
        except OSError:
            shutil.copy2(source, destination)

    shutil.copytree(folder, staging, copy_function=copy, dirs_exist_ok=True)

"""What several workers need once: the first makes it, and the others find it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a path of the session that `make` has written; tests only read it."""
    folder = factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    done = path.with_name(f"{name}.done")
    with FileLock(f"{path}.lock"):
        if not done.exists():
            make(path)
            done.touch()
    return path

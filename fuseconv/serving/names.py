"""Checks and derives the names of models in URLs. Does not import torch."""

from __future__ import annotations

import re
from pathlib import Path

from fuseconv.bundle.manifest import SUFFIX
from fuseconv.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_name(name: str) -> bool:
    """Returns whether a name is valid in a URL: at most 128 letters, digits, '.', '_' and '-'."""
    return _NAME.fullmatch(name) is not None


def name_of(bundle: Path) -> str:
    """Returns the model name of a bundle: the name of the bundle's folder without `.fuseconv`.

    Raises:
        UsageError: the name is not valid in a URL.
    """
    name = bundle.absolute().name.removesuffix(SUFFIX)
    if not is_name(name):
        what = f"{name!r} cannot be the name of a model in a URL"
        raise UsageError(
            what, where=str(bundle), fix="give a name of letters, digits, '.', '_' and '-', with NAME=PATH"
        )
    return name


def named_bundle(word: str) -> tuple[str, Path]:
    """Parses `NAME=PATH` into a name and a path. For a path alone, `name_of` derives the name."""
    name, given, path = word.partition("=")
    return (name, Path(path)) if given and is_name(name) else (name_of(Path(word)), Path(word))

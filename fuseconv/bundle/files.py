"""Measures the sizes and hashes of a bundle's files, and compares them with the manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuseconv.bundle.sealed_text import Strict
from fuseconv.errors import RefusedError
from fuseconv.untrusted.files import open_plain

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"

LIBRARIES = "lib"
"""The folder of the op libraries."""

SIGNATURE = "model.sig"
"""The name of the signature file. The manifest does not list this file, because the signature covers the manifest."""

AGAIN = "convert the model again, or copy the bundle again"


class File(Strict):
    """The size and hash of a file.

    Attributes:
        sha256: the sha256 as hexadecimal digits. Empty for an empty folder.
        size: the size in bytes.
    """

    sha256: str
    size: int


def measure(folder: Path, known: Mapping[str, File], without: tuple[Path, ...] = ()) -> dict[str, File]:
    """Returns the size and hash of every file in a folder, by its path relative to the folder.

    The files are hashed on all cores. An empty folder counts as a file.

    Args:
        folder: the folder whose files are hashed.
        known: maps the relative path of each file whose hash is known to its size and hash. These files are not hashed.
        without: the paths of files and folders to skip.

    Raises:
        OSError: a file cannot be read.
        RefusedError: the folder contains something other than regular files and folders.
    """
    names = [path.relative_to(folder).as_posix() for path in _walk(folder, without)]
    with ThreadPoolExecutor() as pool:
        files = pool.map(lambda name: known.get(name) or measure_file(folder / name), names)
        return dict(zip(names, files, strict=True))


def measure_file(path: Path) -> File:
    """Returns the size and hash of a file; for a folder, which must be empty, size 0 and an empty hash.

    Raises:
        OSError: the file cannot be read.
    """
    if path.is_dir():
        return File(sha256="", size=0)
    with open_plain(path, links=False) as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=file.tell())


def compare(folder: Path, expected: Mapping[str, File], found: Mapping[str, File]) -> None:
    """Checks that the files found in a folder are exactly the files that its manifest lists.

    Args:
        folder: the folder that the error names.
        expected: the files that the manifest lists, by relative path.
        found: the files found in the folder, by relative path.

    Raises:
        RefusedError: a file is missing, damaged or unexpected. The error names the file.
    """
    for name, file in expected.items():
        if name not in found:
            problem = "is missing"
        elif found[name].size != file.size:
            problem = f"has {found[name].size} bytes, but the manifest says {file.size}"
        elif found[name] != file:
            problem = "does not have the sha256 in the manifest"
        else:
            continue
        raise RefusedError(f"{name} {problem}", where=str(folder / name), fix=AGAIN)
    for name in found.keys() - expected.keys():
        raise RefusedError(f"{name} is not in the manifest", where=str(folder / name), fix=AGAIN)


def _walk(folder: Path, without: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the path of every file and every empty folder.

    Raises:
        RefusedError: an entry is a symbolic link, or neither a regular file nor a folder.
    """
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        if path in without:
            continue
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            raise RefusedError(f"{entry.name} is not a plain file or folder", where=str(path), fix=AGAIN)
        if entry.is_dir() and any(path.iterdir()):
            yield from _walk(path, without)
        else:
            yield path

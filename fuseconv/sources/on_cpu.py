"""Reads torch.export archives that were saved on a GPU as if they had been saved on the CPU.

An archive names the device of every tensor, and torch puts the tensor there, which fails on a machine without that
device. Ops that create tensors name it too, and would mix devices when the program is captured, which happens on the
CPU. So a copy is read whose devices are the CPU.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import FileError
from fuseconv.untrusted.plain_pickle import load_plain_pickle

_PIECE = 1 << 24
_HOST = ("cpu", "meta")


@contextmanager
def on_cpu(path: Path) -> Iterator[Path]:
    """Yields the path of a screened archive whose devices are the CPU: the archive itself, or a temporary copy.

    Raises:
        FileError: the copy cannot be written.
    """
    with zipfile.ZipFile(path) as archive:
        texts = {name: json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")}
        moved = {name for name, value in texts.items() if _move(value)}
        if not moved:
            yield path
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder, path.name)
                with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as written:
                    for name in archive.namelist():
                        _copy(archive, written, name, json.dumps(texts[name]).encode() if name in moved else None)
                yield copy
        except OSError as error:
            what = f"the archive was saved on a GPU, and its copy for the CPU cannot be written: {error.strerror}"
            raise FileError(what, where=str(error.filename or path), fix="free space in the folder TMPDIR") from error


def _move(value: Any) -> bool:
    """Replaces every device in parsed JSON by the CPU. Returns whether there was another."""
    if (
        isinstance(value, dict)
        and value.keys() == {"type", "index"}
        and value["type"] not in _HOST
        and isinstance(value["type"], str)
    ):
        value.update(type="cpu", index=None)
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    moved = [_move(item) for item in inner]  # all of them
    return any(moved)


def _copy(archive: zipfile.ZipFile, written: zipfile.ZipFile, name: str, text: bytes | None) -> None:
    if text is not None:
        written.writestr(name, text)
    elif name.endswith(".pt") and (data := archive.read(name)):
        saved = io.BytesIO()
        torch.save(load_plain_pickle(io.BytesIO(data)), saved)
        written.writestr(name, saved.getvalue())
    else:
        with archive.open(name) as source, written.open(name, "w", force_zip64=True) as destination:
            while piece := source.read(_PIECE):
                destination.write(piece)

"""Rewrites torch.export archives that were saved on a GPU, so that they load on the CPU.

An archive records the device of every tensor. torch loads each tensor to this device, which fails on a machine without
the device. Ops that create tensors also record a device, so that GPU and CPU tensors would be mixed when the program is
captured on the CPU. Therefore torch reads a temporary copy of the archive in which every device is the CPU. The copy is
made from screened members only, under their screened names, because other zip readers may use different names.
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
from fuseconv.sources.screening import Member, member_pieces, member_root, read_member, screen_zip
from fuseconv.untrusted.plain_pickle import load_plain_pickle

_HOST = ("cpu", "meta")
_TABLES = ("models/", "data/weights/", "data/constants/")
_TENSORS = ("data/sample_inputs/", "data/weights/", "data/constants/")


@contextmanager
def on_cpu(path: Path) -> Iterator[Path]:
    """Yields the path of an archive that names no device but the CPU: the given archive, or a temporary copy of it.

    Args:
        path: the path of a screened archive.

    Raises:
        FileError: the copy cannot be written.
    """
    members = screen_zip(path, checksums=False)
    root = member_root(members, path)

    def is_in(member: Member, folders: tuple[str, ...], suffix: str) -> bool:
        return member.name.removeprefix(root).startswith(folders) and member.name.endswith(suffix)

    tables = {one.name: json.loads(read_member(path, one)) for one in members if is_in(one, _TABLES, ".json")}
    moved = {name: json.dumps(value).encode() for name, value in tables.items() if _move(value)}
    if not moved:
        yield path
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, path.name)
            with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as written:
                for member in members:
                    if member.name in moved:
                        written.writestr(member.name, moved[member.name])
                    elif is_in(member, _TENSORS, ".pt") and member.size:
                        written.writestr(member.name, _tensors_on_cpu(read_member(path, member)))
                    else:
                        with written.open(member.name, "w", force_zip64=True) as destination:
                            for piece in member_pieces(path, member):
                                destination.write(piece)
            yield copy
    except OSError as error:
        what = f"the archive was saved on a GPU, and its copy for the CPU cannot be written: {error.strerror}"
        raise FileError(
            what,
            where=str(error.filename or path),
            fix="free up disk space in the directory given by the TMPDIR environment variable, "
            "or set TMPDIR to another directory",
        ) from error


def _move(value: Any) -> bool:
    """Replaces every device except `cpu` and `meta` in parsed JSON with `cpu`, in place; returns whether any was."""
    moved, pending = False, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            if one.keys() == {"type", "index"} and isinstance(one["type"], str) and one["type"] not in _HOST:
                one.update(type="cpu", index=None)
                moved = True
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return moved


def _tensors_on_cpu(data: bytes) -> bytes:
    saved = io.BytesIO()
    torch.save(load_plain_pickle(io.BytesIO(data)), saved)
    return saved.getvalue()

"""The tensor data of a TorchScript archive, whose size torch.jit.load does not check.

Of a record that is shorter than its tensor it would read past the end. `torch.load` compares the two by itself.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fuseconv.untrusted.files import open_plain

PICKLES = {"data.pkl": "data", "constants.pkl": "constants"}
"""Each pickle with tensors, and the folder of their data, beside it in the archive."""


class _Inert:
    """Stands for every class of a pickle: it takes what it is given, and does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...

    def __setitem__(self, _: object, __: object) -> None: ...

    def append(self, _: object) -> None:
        """Takes an item."""


class _Storages(pickle.Unpickler):
    """Reads a pickle without running anything, and lists the storages it refers to."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.found: list[tuple[str, int]] = []

    def find_class(self, module: str, name: str) -> Any:
        """Returns the storage class of torch that is named, and `_Inert` for anything else."""
        known = getattr(torch, name, None) if module == "torch" and name.endswith("Storage") else None
        return known if isinstance(known, type) else type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> object:
        """Notes the key of a storage, and its size in bytes."""
        match pid:
            case ("storage", type() as kind, str() as key, _, int() as count) if hasattr(kind, "dtype"):
                self.found.append((key, count * kind.dtype.itemsize))
        return None


def short_record(path: Path) -> str:
    """Returns what is wrong with the first record that has fewer bytes than its tensor; nothing when none is.

    Args:
        path: a TorchScript archive.

    Raises:
        Exception: the archive or a pickle in it cannot be read, in whichever way.
    """
    with open_plain(path) as plain, zipfile.ZipFile(plain) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        root = next(iter(sizes)).partition("/")[0]
        for name, folder in PICKLES.items():
            if f"{root}/{name}" not in sizes:
                continue
            with archive.open(f"{root}/{name}") as file:
                storages = _Storages(file)
                storages.load()
            for key, needed in storages.found:
                record = f"{folder}/{key}"
                if (has := sizes.get(f"{root}/{record}", 0)) < needed:
                    return f"the record {record} has {has} bytes, and its tensor needs {needed}"
    return ""

"""Checks that each record of a TorchScript archive contains all the data of its tensor.

`torch.load` makes this check itself, but `torch.jit.load` reads past the end of a record that is too short.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fuseconv.untrusted.files import open_plain

PICKLES = {"data.pkl": "data", "constants.pkl": "constants"}
"""Maps each pickle in the archive that may refer to tensors to the folder that contains the tensors' data."""


class _Inert:
    """A harmless replacement for any class that a pickle names. It accepts any arguments and does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...

    def __setitem__(self, _: object, __: object) -> None: ...

    def append(self, _: object) -> None:
        """Ignores an item."""


class _Storages(pickle.Unpickler):
    """An unpickler that runs no code from the pickle, and records the tensor storages that the pickle references.

    Attributes:
        found: for each storage, its key and the number of bytes that its tensor requires.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.found: list[tuple[str, int]] = []

    def find_class(self, module: str, name: str) -> Any:
        """Returns a storage class of torch, or a harmless replacement class for any other name."""
        known = getattr(torch, name, None) if module == "torch" and name.endswith("Storage") else None
        return known if isinstance(known, type) else type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> object:
        """Records the key of a storage and its size in bytes. Returns None in place of the storage."""
        match pid:
            case ("storage", type() as kind, str() as key, _, int() as count) if hasattr(kind, "dtype"):
                self.found.append((key, count * kind.dtype.itemsize))
        return None


def short_record(path: Path) -> str:
    """Returns a message about the first record that contains fewer bytes than its tensor requires.

    Returns an empty string if all records are long enough.

    Args:
        path: the path of a TorchScript archive.

    Raises:
        Exception: the archive or a pickle in it cannot be read.
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

"""Joins the weights of several bundles in one file, which holds each tensor once, whatever its names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fuseconv.weights.table import STORE, Table
from fuseconv.weights.tensor_file import Place, mapped, write


@dataclass
class Joined:
    """The weights file of a bundle that was made from other bundles.

    Attributes:
        places: maps each key to its file and its place in the file.
        keys: maps the file and the key of a tensor in another bundle to its key in this file.
    """

    places: dict[str, tuple[str, Place]]
    keys: dict[tuple[Path, str], str]

    @staticmethod
    def write(bundle: Path, sources: Iterable[Path]) -> Joined:
        """Writes the tensors of several bundles to `weights.safetensors`.

        Tensors with the same dtype, shape and bytes are written once. A tensor keeps its key, unless another tensor
        already has this key: then the name of its bundle precedes the key.

        Args:
            bundle: the folder in which the file is written.
            sources: the folders of the bundles, which must have different names.

        Raises:
            FileError: the file cannot be written.
            RefusedError: a file is damaged.
        """
        tensors: dict[str, torch.Tensor] = {}
        known: dict[tuple[torch.dtype, torch.Size, bytes], str] = {}
        keys: dict[tuple[Path, str], str] = {}
        for source in sources:
            for file in files_of(source):
                for key, tensor in mapped(file).items():
                    same = (tensor.dtype, tensor.shape, _digest(tensor))
                    if same not in known:
                        known[same] = key if key not in tensors else f"{source.name}/{key}"
                        tensors[known[same]] = tensor
                    keys[file, key] = known[same]
        places = write(bundle / STORE, tensors)
        return Joined({key: (STORE, place) for key, place in places.items()}, keys)

    def adopt(self, folder: str, table: Table, source: Path) -> Table:  # noqa: ARG002 - the interface of a store
        """Returns the table for an artifact of one of the bundles.

        Args:
            folder: the folder of the artifact in its bundle.
            table: the weights of the artifact in that bundle.
            source: that bundle.
        """
        held = {key: source / name for name in table.files for key in mapped(source / name)}
        entries = {
            name: replace(entry, key=self.keys[held[entry.key], entry.key]) for name, entry in table.tensors.items()
        }
        return replace(table, files=(STORE,), tensors=entries)


def files_of(bundle: Path) -> list[Path]:
    """Returns the weights files of a bundle, the shared file first."""
    return [bundle / STORE, *sorted(path for path in bundle.glob(f"*/{STORE}"))]


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest()

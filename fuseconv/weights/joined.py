"""Merges the weights of several bundles into one file that contains each distinct tensor once."""

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
    """The weights file of a bundle that was joined from other bundles.

    Attributes:
        bundle: the folder of the bundle.
        places: maps each tensor's key to the name of the weights file and the tensor's place in this file.
        keys: maps the path of a source bundle's weights file and a tensor's key there to the tensor's key in this file.
    """

    bundle: Path
    places: dict[str, tuple[str, Place]]
    keys: dict[tuple[Path, str], str]

    @staticmethod
    def write(bundle: Path, sources: Iterable[Path]) -> Joined:
        """Writes the tensors of several bundles to `weights.safetensors`, and returns their keys and places.

        Tensors with the same dtype, shape and bytes are written once. A tensor keeps its key unless a different tensor
        already uses this key. Then the name of the source bundle and a slash are added before the key.

        Args:
            bundle: the folder to which the file is written.
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
        return Joined(bundle, {key: (STORE, place) for key, place in places.items()}, keys)

    def adopt(self, folder: str, table: Table, source: Path) -> Table:  # noqa: ARG002 - the interface of a store
        """Converts the weights table of an artifact from one of the source bundles to the keys of this file.

        Args:
            folder: ignored.
            table: the artifact's table in its source bundle.
            source: the folder of the source bundle.
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

"""Stores the weights of all artifacts of a bundle, each tensor once.

The tensors of the fused program are written first, to `weights.safetensors`, and all artifacts refer to this file.
Other tensors, such as constants that an exporter computed, are written to a second file in the folder of the artifact
that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from fuseconv.program.graph_copy import with_weights
from fuseconv.weights.table import STORE, Entry, Table
from fuseconv.weights.tensor_file import DTYPES, Place, mapped, write

Address = tuple[object, ...]


def is_storable(tensor: Any) -> bool:
    """Returns whether a weights file can hold a tensor.

    It can hold strided tensors of supported dtypes, but no tensor subclasses, quantized tensors or meta tensors.
    """
    return (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and (tensor.dtype in DTYPES or tensor.is_complex())
    )


def weights_of(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Returns the parameters, buffers and constants of a program that a weights file can hold, by name."""
    tensors = {**exported.state_dict, **exported.constants}
    return {name: tensor for name, tensor in tensors.items() if is_storable(tensor)}


class Adopting(Protocol):
    """The interface of a weight store into which artifacts of other bundles are moved, such as `Store`."""

    bundle: Path
    places: dict[str, tuple[str, Place]]

    def adopt(self, folder: str, table: Table, source: Path) -> Table: ...  # noqa: D102


@dataclass
class Store:
    """The weights of a bundle that is being written.

    Attributes:
        bundle: the folder of the bundle.
        entries: maps the memory address, dtype and layout of each known tensor to its entry in the store.
        named: maps the name of each stored tensor to the tensor and its entry.
        places: maps the key of each tensor that this process wrote to the name of its weights file and its place there.
    """

    bundle: Path
    entries: dict[Address, Entry] = field(default_factory=dict)
    named: dict[str, tuple[torch.Tensor, Entry]] = field(default_factory=dict)
    places: dict[str, tuple[str, Place]] = field(default_factory=dict)
    _alive: list[torch.Tensor] = field(default_factory=list)  # so that their addresses are not reused

    @staticmethod
    def create(bundle: Path, tensors: Mapping[str, torch.Tensor]) -> Store:
        """Writes tensors to `weights.safetensors`, and returns a store that contains them.

        Tensors with the same memory, dtype, shape and strides are written once.

        Raises:
            FileError: the file cannot be written.
        """
        store = Store(bundle)
        for tensor, entry in store._write(STORE, tensors, "").values():
            store._know(tensor, entry)
        store.named = {key: (tensor, Entry(key)) for key, tensor in mapped(bundle / STORE).items()}
        return store

    @staticmethod
    def reopen(bundle: Path, table: Table, tensors: Mapping[str, torch.Tensor]) -> Store:
        """Returns a store for an existing weights file.

        Args:
            bundle: the folder of the bundle.
            table: the table of the weights file.
            tensors: the tensors that were read with this table, by name.
        """
        store = Store(bundle, named={name: (tensor, table.tensors[name]) for name, tensor in tensors.items()})
        for tensor, entry in store.named.values():
            store._know(tensor, entry)
        return store

    def attached(self, exported: ExportedProgram) -> ExportedProgram:
        """Returns a program whose weights are memory-mapped, so that the memory of the original weights can be freed.

        Weights that are not on the CPU, or not in the store, are kept unchanged.
        """
        changed: dict[str, torch.Tensor] = {}
        for name, tensor in weights_of(exported).items():
            entry = self.find(name, tensor) if tensor.device.type == "cpu" else None
            if entry is not None:
                changed[name] = like(tensor, entry.view(self.named[entry.key][0]))
                self._know(changed[name], entry)
        return with_weights(exported, changed)

    def find(self, name: str, tensor: torch.Tensor) -> Entry | None:
        """Returns the entry of a tensor in the store, or None if the tensor is not stored.

        The tensor is looked up by its memory address first. If this fails, a stored tensor of the same name is used if
        it has the same dtype, shape and bytes.
        """
        if (entry := self.entries.get(_address(tensor))) is not None:
            return entry
        stored, entry = self.named.get(name, (None, None))
        if stored is None or entry is None or not is_same(stored, tensor):
            return None
        self._know(tensor, entry)
        return entry

    def table(self, tensors: Mapping[str, torch.Tensor]) -> Table:
        """Returns a table of those given tensors that are in the store."""
        found = {name: self.find(name, tensor) for name, tensor in tensors.items()}
        return Table((STORE,), {name: entry for name, entry in found.items() if entry is not None})

    def put(self, folder: str, tensors: Mapping[str, torch.Tensor]) -> Table:
        """Returns the weights table of an artifact, after writing weights that are not in the store to its folder.

        Args:
            folder: the folder of the artifact, relative to the bundle.
            tensors: maps the name of each weight in the artifact to the weight.

        Raises:
            FileError: a file cannot be written.
        """
        table = self.table(tensors)
        own = {name: tensor for name, tensor in tensors.items() if name not in table.tensors}
        if not own:
            return table
        name = f"{folder}/{STORE}"
        written = {name: entry for name, (_, entry) in self._write(name, own, f"{folder}/").items()}
        return Table((STORE, name), {**table.tensors, **written})

    def adopt(self, folder: str, table: Table, source: Path) -> Table:
        """Converts the weights table of another bundle's artifact to this store.

        A weight that is missing from this store, or differs from the stored tensor of the same key, is written to a
        file in the artifact's folder.

        Args:
            folder: the folder of the artifact, relative to its bundle; it is the same in both bundles.
            table: the artifact's table in the other bundle.
            source: the folder of the other bundle.

        Raises:
            FileError: a file cannot be written.
        """
        theirs = {key: tensor for name in table.files for key, tensor in mapped(source / name).items()}
        keys = dict.fromkeys(entry.key for entry in table.tensors.values())
        own = {
            key: theirs[key] for key in keys if key not in self.named or not is_same(self.named[key][0], theirs[key])
        }
        name, prefix = f"{folder}/{STORE}", f"{folder}/"
        moved = {key: entry for key, (_, entry) in (self._write(name, own, prefix) if own else {}).items()}
        entries = {
            weight: replace(entry, key=moved[entry.key].key if entry.key in moved else entry.key)
            for weight, entry in table.tensors.items()
        }
        return replace(table, files=(STORE, name) if own else (STORE,), tensors=entries)

    def _write(
        self, name: str, tensors: Mapping[str, torch.Tensor], prefix: str
    ) -> dict[str, tuple[torch.Tensor, Entry]]:
        """Writes tensors to a file, and maps each name to its tensor and entry.

        Args:
            name: the name of the file, relative to the bundle.
            tensors: the tensors by name.
            prefix: the text that is put before each name to form the tensor's key.
        """
        kept: dict[str, torch.Tensor] = {}
        written: dict[Address, Entry] = {}
        for weight, tensor in tensors.items():
            if _address(tensor) not in written:
                stored, entry = _spelled(prefix + weight, tensor)
                kept[entry.key], written[_address(tensor)] = stored, entry
        self.places |= {key: (name, place) for key, place in write(self.bundle / name, kept).items()}
        return {weight: (tensor, written[_address(tensor)]) for weight, tensor in tensors.items()}

    def _know(self, tensor: torch.Tensor, entry: Entry) -> None:
        self.entries[_address(tensor)] = entry
        self._alive.append(tensor)


def like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns `values`, as a Parameter if `tensor` is a Parameter, and not as a view: see `load_program`."""
    return torch.nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else values.data


def _spelled(key: str, tensor: torch.Tensor) -> tuple[torch.Tensor, Entry]:
    """Returns the contiguous tensor to store for a weight, and the entry that describes the weight as its view.

    The memory of a non-contiguous weight is stored as a 1D tensor, and its entry keeps the strides. A complex weight is
    stored as real and imaginary parts.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    entry = Entry(key, is_complex=plain.is_complex())
    if not plain.is_contiguous():
        steps = sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
        entry = replace(entry, shape=tuple(plain.shape), stride=tuple(plain.stride()))
        plain = plain.as_strided((steps + 1,), (1,))
    return torch.view_as_real(plain) if entry.is_complex else plain, entry


def _address(tensor: torch.Tensor) -> Address:
    """Returns a key that is equal for two tensors only if they view the same memory in the same way."""
    place = tensor.data_ptr() if tensor.numel() else 0
    return place, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.is_conj(), tensor.is_neg()


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors are contiguous and have the same dtype, shape and bytes.

    Equal NaNs are equal. Nonempty complex tensors are never equal.
    """
    if one.dtype != other.dtype or one.shape != other.shape or not (one.is_contiguous() and other.is_contiguous()):
        return False
    if one.numel() == 0 or one.is_complex():
        return one.numel() == 0
    left, right = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(left, right.to(left.device))

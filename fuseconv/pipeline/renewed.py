"""Finds the artifacts of a bundle that stay with new weights, because they only refer to the weight store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fuseconv.bundle.manifest import Manifest
from fuseconv.bundle.methods import weights_folder
from fuseconv.pipeline.assembly import program_hash
from fuseconv.pipeline.original import ARTIFACT
from fuseconv.program.captured import Program
from fuseconv.targets import spec_of
from fuseconv.weights.store import Store, is_same, weights_of
from fuseconv.weights.table import STORE, Entry, Table
from fuseconv.weights.tensor_file import mapped


@dataclass(frozen=True)
class OldWeights:
    """The stored weights of a bundle or method, by their names in its programs.

    Attributes:
        folder: the folder of the bundle or method.
        entries: the entry of each weight that a table of the bundle names.
        stored: the tensors of the weight file, by key.
    """

    folder: Path
    entries: Mapping[str, Entry]
    stored: Mapping[str, torch.Tensor]

    @staticmethod
    def of(folder: Path, manifest: Manifest) -> OldWeights:
        """Reads the tables of a bundle or method. Raises RefusedError if a file is damaged."""
        whole = weights_folder(folder)
        stored = mapped(whole / STORE)
        named = {key: Entry(key) for key in stored} if whole == folder else {}  # the keys of methods are made unique
        tables = (table.tensors for table in _tables(folder, manifest))
        return OldWeights(folder, {**named, **{name: one for table in tables for name, one in table.items()}}, stored)

    def renewed(self, target: str, path: str, program: Program, store: Store) -> Table | None:
        """Returns the table with which an artifact computes a program with new weights, or None if it cannot.

        The artifact can stay if its code is the program's, and every weight of the program is one of the artifact's, is
        unchanged, or was stored as the same tensor as one of the artifact's and has the same new value. A weight that
        is not one of the artifact's may be in its code: AOTInductor compiles the values of the smallest weights, and
        uses one constant for weights that are one tensor when it compiles.

        Args:
            target: the name of the target.
            path: the path of the artifact, relative to the bundle or method.
            program: the fused program of the target, with the new weights.
            store: the store with the new weights.
        """
        table = None if spec_of(target).runtime == "onnxruntime" else Table.of(self.folder / path)
        if table is None or table.files != (STORE,) or table.program != program_hash(program):
            return None
        weights = weights_of(program.exported)
        new = store.table(weights).tensors
        found = {name: self._found(name, one, new) for name, one in table.tensors.items()}
        renewed = {name: one for name, one in found.items() if one is not None}
        if len(renewed) < len(found) or not all(_is_alike(table.tensors[name], one) for name, one in renewed.items()):
            return None
        keys: dict[str, set[str]] = {}
        for name, one in renewed.items():
            keys.setdefault(table.tensors[name].key, set()).add(one.key)
        tensors = {one.key: weights[name] for name, one in new.items()}
        for name in weights.keys() - renewed.keys():
            old = self.entries.get(name)
            if old is None or old.key not in self.stored:
                return None
            if old.key not in keys:
                same = is_same(old.view(self.stored[old.key]), weights[name])
            else:
                own = new[name].key if name in new else None
                same = all(key == own or is_same(tensors[key], weights[name]) for key in keys[old.key])
            if not same:
                return None
        return Table((STORE,), renewed, table.program)

    def _found(self, name: str, old: Entry, new: Mapping[str, Entry]) -> Entry | None:
        """Returns the new entry of an artifact's weight, which may have another name in the program."""
        if name in new:
            return new[name]
        keys = {new[other].key: new[other] for other, one in self.entries.items() if one == old and other in new}
        return next(iter(keys.values())) if len(keys) == 1 else None


def _tables(folder: Path, manifest: Manifest) -> Iterator[Table]:
    """Yields the tables of the original program and of the artifacts, as far as they name only the weight store."""
    paths = [path for name, path in manifest.targets.items() if spec_of(name).runtime != "onnxruntime"]
    for path in (ARTIFACT, *map(Path, sorted(paths))):
        if (table := Table.of(folder / path)) is not None and table.files == (STORE,):
            yield table


def _is_alike(old: Entry, new: Entry) -> bool:
    return (old.shape, old.stride, old.is_complex) == (new.shape, new.stride, new.is_complex)

"""Compares the weights that are stored in the files of a bundle with the weights of the program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fuseconv.bundle.manifest import ONNX
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import with_weights
from fuseconv.targets import spec_of
from fuseconv.weights.store import like, weights_of
from fuseconv.weights.table import STORE, TABLE, Table
from fuseconv.weights.tensor_file import mapped

_ONNX_FILES = (STORE, f"{ONNX}/{STORE}")
"""The weight files to which ONNX models refer."""


@dataclass(frozen=True)
class Wrong:
    """A stored weight that differs from the program's weight.

    Attributes:
        file: the path of the wrong file, relative to the bundle's folder.
        name: the name of the weight in the program.
        count: the number of elements that differ from the program's weight.
        size: the number of elements of the weight.
        tensor: the stored weight.
    """

    file: str
    name: str
    count: int
    size: int
    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"{self.file}: {self.count} of {self.size} elements of {self.name} differ from the model's"


@dataclass(frozen=True)
class Stored:
    """The weights that a bundle stores for the artifact of a target.

    Attributes:
        bundle: the folder of the bundle.
        artifact: the path of the artifact, relative to the bundle's folder.
    """

    bundle: Path
    artifact: Path

    def wrong(self, target: str, fused: Program) -> list[Wrong]:
        """Returns the stored weights of a target whose values differ from the fused program's weights."""
        weights = weights_of(fused.exported)
        if spec_of(target).runtime != "onnxruntime":
            return list(self._wrong_in_table(weights))
        found = [(file, mapped(self.bundle / file)) for file in _ONNX_FILES if (self.bundle / file).is_file()]
        stored = ((file, key.rpartition("/")[2], tensor) for file, held in found for key, tensor in held.items())
        named = ((file, name, tensor, weights.get(name)) for file, name, tensor in stored)
        return [one for file, name, tensor, ours in named if (one := _wrong(file, name, ours, tensor))]

    def _wrong_in_table(self, weights: Mapping[str, torch.Tensor]) -> Iterator[Wrong]:
        """Yields the wrong weights that a torch target reads through its weight table, if the target has a table."""
        if (table := Table.of(self.bundle / self.artifact)) is None:
            return
        spelled = {_spelled(name): name for name in weights}
        held = {key: (file, tensor) for file in table.files for key, tensor in mapped(self.bundle / file).items()}
        for name, tensor in table.read(self.bundle, "cpu").items():
            known = spelled.get(_spelled(name), "")
            file, stored = held[table.tensors[name].key]
            if (one := _wrong(file, known, weights.get(known), tensor)) is None:
                continue
            # The table is the wrong file if its key refers to another weight, or if the tensor under its key is right.
            is_right = _spelled(table.tensors[name].key.rpartition("/")[2]) != _spelled(known) or (
                stored.shape == tensor.shape and _wrong(file, known, weights[known], stored) is None
            )
            yield replace(one, file=f"{self.artifact.parent.as_posix()}/{TABLE}") if is_right else one

    def attached(self, fused: Program, wrong: Collection[Wrong]) -> Program:
        """Returns a copy of the fused program that contains the wrong stored weights in place of the correct ones."""
        weights = weights_of(fused.exported)
        changed = {one.name: like(weights[one.name], one.tensor.to(weights[one.name].device)) for one in wrong}
        return replace(fused, exported=with_weights(fused.exported, changed))


def _wrong(file: str, name: str, ours: torch.Tensor | None, stored: torch.Tensor) -> Wrong | None:
    """Compares a stored weight with the program's weight. Returns the difference, or None if they are equal.

    Also returns None if the program does not contain the weight, or if the shapes or dtypes differ, because the weight
    is then stored in another layout.
    """
    if ours is None or ours.shape != stored.shape or ours.dtype != stored.dtype:
        return None
    count = int((~torch.isclose(ours.detach().cpu(), stored, rtol=0, atol=0, equal_nan=True)).sum())
    return Wrong(file, name, count, stored.numel(), stored) if count else None


def _spelled(name: str) -> str:
    """Returns a weight's name with underscores instead of dots, because TorchScript allows no dots in names."""
    return name.replace(".", "_")

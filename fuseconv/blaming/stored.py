"""The weights that are stored in the files of a bundle, compared with those of the program."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fuseconv.bundle.manifest import ONNX
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import with_weights
from fuseconv.targets import spec_of
from fuseconv.weights.store import like, weights_of
from fuseconv.weights.table import STORE
from fuseconv.weights.tensor_file import mapped


@dataclass(frozen=True)
class Wrong:
    """A stored weight that is not that of the program.

    Attributes:
        file: the file, relative to the bundle.
        name: the name of the weight.
        count: how many elements differ.
        size: the number of its elements.
        tensor: the stored weight.
    """

    file: str
    name: str
    count: int
    size: int
    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"{self.file}: {self.count} of {self.size} elements of {self.name} are not those of the model"


@dataclass(frozen=True)
class Stored:
    """The files of weights of a bundle.

    Attributes:
        bundle: the folder.
        artifact: the artifact of a target, relative to the folder.
    """

    bundle: Path
    artifact: Path

    def wrong(self, target: str, fused: Program) -> list[Wrong]:
        """Returns the weights of a target that are stored with other values than the fused program has."""
        own = ONNX if spec_of(target).runtime == "onnxruntime" else self.artifact.parent.as_posix()
        weights = weights_of(fused.exported)
        found = []
        for file, prefix in ((STORE, ""), (f"{own}/{STORE}", f"{own}/")):
            if not (self.bundle / file).is_file():
                continue
            for key, tensor in mapped(self.bundle / file).items():
                name = key.removeprefix(prefix)
                if (ours := weights.get(name)) is not None and (count := _differing(ours, tensor)):
                    found.append(Wrong(file, name, count, tensor.numel(), tensor))
        return found

    def attached(self, fused: Program, wrong: Collection[Wrong]) -> Program:
        """Returns the fused program with the stored weights."""
        weights = weights_of(fused.exported)
        changed = {one.name: like(weights[one.name], one.tensor.to(weights[one.name].device)) for one in wrong}
        return replace(fused, exported=with_weights(fused.exported, changed))


def _differing(ours: torch.Tensor, stored: torch.Tensor) -> int:
    """Returns how many elements differ. 0 for tensors of other shapes: one is stored in another form."""
    if ours.shape != stored.shape or ours.dtype != stored.dtype or not ours.is_contiguous():
        return 0
    return int((~torch.isclose(ours.detach().cpu(), stored, rtol=0, atol=0, equal_nan=True)).sum())

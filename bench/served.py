"""The models that bench/serving.py serves: models of the zoo with dynamic dims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from cases import DTYPES
from traffic import Ranges, Size
from zoo import ENTRIES
from zoo_parts import Entry, Inputs, Tensors

DIMS: dict[str, dict[str, tuple[int, int]]] = {
    "bert-base-masked": {"batch": (1, 8), "tokens": (8, 128)},
    "mlp-3x128-relu": {"batch": (1, 4096)},
    "convnext-t": {"batch": (1, 32)},
    "vit-b-16": {"batch": (1, 32)},
}
"""Model to the dims that all its inputs begin with, and their ranges."""


@dataclass(frozen=True)
class Served:
    """A model as it is served.

    Attributes:
        name: of the entry of the zoo.
        dtype: of its weights.
        layers: how many it has; None for all.
        device: `cpu` or `cuda`.
    """

    name: str
    dtype: str
    layers: int | None
    device: str

    @property
    def label(self) -> str:
        """The name of a folder for what is built of it."""
        return f"{self.name}-{self.dtype}-{self.layers or 'all'}-{self.device}"

    @property
    def ranges(self) -> Ranges:
        """The least and the greatest value of each dynamic dim."""
        return tuple(DIMS[self.name].values())

    @property
    def entry(self) -> Entry:
        """The model at its largest size."""
        entry = next(entry for entry in ENTRIES if entry.name == self.name)
        largest = tuple(greatest for _, greatest in self.ranges)
        return replace(entry, shape=largest + entry.shape[len(largest) :])

    def module(self) -> torch.nn.Module:
        """Returns the module, on the CPU."""
        return self.entry.made(DTYPES[self.dtype], self.layers)[0]

    def inputs(self) -> Inputs:
        """Returns the largest inputs, on the CPU."""
        return self.entry.inputs(DTYPES[self.dtype])

    def exported(self, device: str) -> torch.export.ExportedProgram:
        """Returns the exported program, with its dynamic dims."""
        module, inputs = self.module(), self.inputs()
        dims = [torch.export.Dim(name, min=low, max=high) for name, (low, high) in DIMS[self.name].items()]
        shapes: Any = (dict(enumerate(dims)),) * len(inputs)
        if isinstance(module, Tensors):  # takes `*inputs`
            shapes = (shapes,)
        moved = tuple(one.to(device) for one in inputs)
        with torch.no_grad():
            return torch.export.export(module.to(device), moved, dynamic_shapes=shapes, strict=False)


def cut(inputs: Inputs, size: Size) -> Inputs:
    """Returns the inputs of a size: a corner of the largest ones."""
    corner = tuple(slice(length) for length in size)
    return tuple(one[corner].contiguous() for one in inputs)

"""The models that bench/serving.py serves: models of the zoo with dynamic dims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from cases import DTYPES
from traffic import Ranges, Size
from zoo import ENTRIES
from zoo_parts import Axis, Entry, Inputs, Tensors


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
    def axes(self) -> tuple[Axis, ...]:
        """The dynamic dims."""
        return self.entry.axes

    @property
    def ranges(self) -> Ranges:
        """The values of each dynamic dim."""
        return tuple(axis.sizes for axis in self.axes)

    @property
    def entry(self) -> Entry:
        """The model at its largest size."""
        entry = next(entry for entry in ENTRIES if entry.name == self.name)
        return sized(entry, tuple(axis.sizes[-1] for axis in entry.axes))

    def module(self) -> torch.nn.Module:
        """Returns the module, on the CPU."""
        return self.entry.module(DTYPES[self.dtype], self.layers)

    def inputs(self) -> Inputs:
        """Returns the largest inputs, on the CPU."""
        return self.entry.inputs(DTYPES[self.dtype])

    def exported(self, device: str) -> torch.export.ExportedProgram:
        """Returns the exported program, with its dynamic dims."""
        moved = tuple(one.to(device) for one in self.inputs())
        return exported(self.module().to(device), moved, self.axes)


def sized(entry: Entry, size: Size) -> Entry:
    """Returns a model at a size: a value for each of its axes."""
    shape = list(entry.shape)
    for axis, length in zip(entry.axes, size, strict=True):
        shape[axis.at] = length
    return replace(entry, shape=tuple(shape))


def exported(module: torch.nn.Module, inputs: Inputs, axes: Sequence[Axis]) -> torch.export.ExportedProgram:
    """Returns the program of a module whose axes are dynamic."""
    dims: dict[str, Any] = {}
    for axis in axes:
        step = axis.sizes.step
        dim = torch.export.Dim(axis.name, min=axis.sizes[0] // step, max=axis.sizes[-1] // step)
        dims[axis.name] = step * dim if step > 1 else dim
    shapes: Any = tuple({axis.at: dims[axis.name] for axis in some} for some in axes_of(inputs, axes))
    if isinstance(module, Tensors):  # takes `*inputs`
        shapes = (shapes,)
    with torch.no_grad():
        return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


def cut(inputs: Inputs, axes: Sequence[Axis], size: Size) -> Inputs:
    """Returns the inputs of a size: a corner of the largest ones."""
    lengths = dict(zip((axis.name for axis in axes), size, strict=True))

    def corner(one: torch.Tensor, some: Sequence[Axis]) -> torch.Tensor:
        lengths_at = {axis.at: slice(lengths[axis.name]) for axis in some}
        return one[tuple(lengths_at.get(at, slice(None)) for at in range(one.dim()))].contiguous()

    return tuple(map(corner, inputs, axes_of(inputs, axes)))


def axes_of(inputs: Inputs, axes: Sequence[Axis]) -> Iterator[list[Axis]]:
    """Yields those axes that each input has."""
    for number in range(len(inputs)):
        yield [axis for axis in axes if axis.inputs is None or number < axis.inputs]

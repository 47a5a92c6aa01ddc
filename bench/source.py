"""The file that `convert` reads of a model of the zoo: an exported program, or a module that torch.export refuses."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from cases import DTYPES
from served import axes_of, exported
from torch import nn
from torch._dynamo.exc import UserError
from zoo_parts import Axis, Inputs, Tensors

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import TensorSpec
from fuseconv.sources import Options

NAMES = {dtype: name for name, dtype in DTYPES.items()} | {torch.int64: "i64", torch.int32: "i32", torch.bool: "bool"}


def saved(module: nn.Module, inputs: Inputs, axes: Sequence[Axis], folder: Path, device: str) -> tuple[Path, Options]:
    """Saves a model, and returns the path and the options to convert it with.

    torch.export refuses some models whose axes are dynamic, because of guards that hold for all sizes. fuseconv exports
    the module of such a model by itself.
    """
    try:
        program = exported(module, inputs, axes)
    except UserError:
        specs = tuple(map(spec, parameters(module, len(inputs)), inputs, axes_of(inputs, axes)))
        torch.save(module, folder / "model.pt")
        return folder / "model.pt", Options(device=device, inputs=specs, trust=frozenset({"pickle"}))
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2", Options(device=device)


def parameters(module: nn.Module, count: int) -> list[str]:
    """Returns the names of a module's inputs."""
    names = [f"inputs_{number}" for number in range(count)]
    return names if isinstance(module, Tensors) else list(inspect.signature(module.forward).parameters)[:count]


def spec(name: str, example: torch.Tensor, axes: Sequence[Axis]) -> TensorSpec:
    """Returns the specification of an input, with random integers that the example has too."""
    shape: list[int | Dim] = list(example.shape)
    for axis in axes:
        shape[axis.at] = Dim(axis.name, axis.sizes[0], axis.sizes[-1], axis.sizes.step)
    ends = () if example.is_floating_point() else (float(example.min()), float(example.max()))
    return TensorSpec(name, NAMES[example.dtype], tuple(shape), *ends)

"""`Subject` to `Program`: torch.export, not decomposed, positional tensors in, a tuple of tensors out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from fuseconv.contract import Contract, Dim, TensorSpec
from fuseconv.inputs import draw, example_sizes
from fuseconv.sources import Subject
from fuseconv.sources.flat import flatten


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        exported: flat calling convention: (tensor, ...) to (tensor, ...); placeholders are named as the contract says.
        contract: inputs and outputs; integer inputs that index an embedding have their range.
        examples: one tensor per input.
    """

    exported: ExportedProgram
    contract: Contract
    examples: tuple[torch.Tensor, ...]


def capture(subject: Subject) -> Program:
    """Captures a subject as a graph, with its dynamic dims.

    Raises:
        UnsupportedError: the model cannot be exported with this contract; the error names the model's source line.
    """
    contract = subject.contract
    tensors = draw(contract, example_sizes(contract), seed=0)
    shapes = [_dynamic(spec) for spec in contract.inputs]
    if subject.call:
        args, kwargs = (), dict(zip(subject.call, tensors, strict=True))
        dynamic: Any = dict(zip(subject.call, shapes, strict=True))
    else:
        args, kwargs, dynamic = tensors, {}, tuple(shapes)
    with torch.no_grad():
        exported = torch.export.export(subject.module, args, kwargs, dynamic_shapes=dynamic, strict=False)
    flat = flatten(exported, [spec.name for spec in contract.inputs], subject.call, subject.examples)
    return Program(flat.exported, replace(contract, outputs=flat.outputs), subject.examples)


def _dynamic(spec: TensorSpec) -> dict[int, Any]:
    return {
        axis: torch.export.Dim(size.name, min=size.min, max=size.max)
        for axis, size in enumerate(spec.shape)
        if isinstance(size, Dim) and size.min < size.max
    }

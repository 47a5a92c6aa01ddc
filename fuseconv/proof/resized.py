"""Resizes example inputs to sizes at which a captured graph may differ from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import LARGEST
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.sizes.named_sizes import named_sizes
from fuseconv.sizes.telling_sizes import telling_sizes


def resized(model: torch.nn.Module, exported: ExportedProgram, leaves: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yields inputs at critical combinations of the dynamic sizes, each as (a text with the shapes, the input leaves).

    Yields nothing if the program has no dynamic size.

    Args:
        model: the captured model.
        exported: the captured program, which declares the range of each dynamic dim.
        leaves: the flattened example inputs: tensors, and constants, which stay as they are.
    """
    users = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    shapes = [
        node.meta["val"].shape if isinstance(node.meta.get("val"), Tensor) else None
        for node in exported.graph.find_nodes(op="placeholder")
        if node.name in users
    ]
    symbols: dict[str, Any] = {
        str(symbol): symbol
        for shape in shapes
        for size in shape or ()
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    }
    dims = tuple(_dim(name, exported.range_constraints[symbol]) for name, symbol in symbols.items())
    if not dims:
        return
    ranges = Contract((TensorSpec("sizes", "f32", dims),), ())
    for sizes in telling_sizes(ranges, named_sizes(model)):
        at = {symbols[name]: size for name, size in sizes.items()}
        pairs = zip(leaves, shapes, strict=True)
        call = [leaf if shape is None else _tiled(leaf, _sizes(shape, at)) for leaf, shape in pairs]
        yield ", ".join(str(list(leaf.shape)) for leaf in call if isinstance(leaf, Tensor)), call


def _dim(name: str, bounds: Any) -> Dim:
    low = int(bounds.lower)
    return Dim(name, low, max(low, min(int(bounds.upper), LARGEST) if bounds.upper.is_Integer else LARGEST))


def _sizes(shape: Sequence[Any], values: Mapping[Any, int]) -> list[int]:
    return [int(size.node.expr.subs(values)) if isinstance(size, torch.SymInt) else int(size) for size in shape]


def _tiled(example: Tensor, shape: list[int]) -> Tensor:
    """Returns a tensor of a given shape that repeats the example along each axis, so that its values are valid inputs.

    If the example has no elements, the result is filled with zeros.
    """
    if not example.numel():
        return example.new_zeros(shape)
    for axis, size in enumerate(shape):
        places = torch.arange(size, device=example.device) % example.shape[axis]
        example = example.index_select(axis, places)
    return example

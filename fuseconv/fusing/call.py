"""Describes the calls that a captured graph supports (argument structure, constants, tensors), and checks calls.

A leaf is a tensor or constant in the nested containers that a call passes. A call that the graph does not support
raises an error, because the graph was not verified for such a call. `contract.expected` checks the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node
from torch.utils import _pytree as pytree

from fuseconv.contract.dims import UNBOUNDED, Affine, Dim, Size
from fuseconv.contract.dtypes import short_dtype
from fuseconv.contract.expected import Expected, Values
from fuseconv.errors import ContractError, UnsupportedError
from fuseconv.ops import autocast

_ROLES = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}

FIX = "fuse the model again with such inputs, and name the sizes that may vary in `dynamic_shapes`"


@dataclass(frozen=True)
class Constant:
    """An argument that is not a tensor. Its value was captured as a part of the graph, so every call must pass it."""

    name: str
    value: Any

    def check(self, found: Any) -> None:
        """Checks that the value that a call passes equals this constant.

        Raises:
            ContractError: the type or the value of the leaf differs.
        """
        if type(found) is not type(self.value) or found != self.value:
            place = f"input {self.name}"
            raise ContractError(
                f"{place} is {found!r}, but the contract says {self.value!r}, which is part of the graph",
                where=place,
                fix=FIX,
            )


def operand_like(spec: InputSpec, placeholder: Node, ranges: Mapping[Any, Any]) -> Expected | Constant:
    """Returns a description of the tensor or the constant that a call must pass for a placeholder.

    Args:
        spec: the entry of the placeholder in the input signature of the program.
        placeholder: the placeholder. Its value is a fake tensor, or the constant that the placeholder represents.
        ranges: maps each symbol to the range of its dim.

    Raises:
        UnsupportedError: a size is not an affine expression of a single dim, such as 2 * n + 1.
    """
    name, example = spec.target or placeholder.name, placeholder.meta["val"]
    if not isinstance(example, Tensor):
        return Constant(name, example)
    shape = tuple(_size(name, size, ranges) for size in example.shape)
    role = _ROLES.get(spec.kind, "input")
    return Expected(name, short_dtype(example.dtype), example.device.type, shape, FIX, role)


@dataclass(frozen=True)
class CapturedCall:
    """The calls that a captured graph supports. The object is immutable, so that copies of a module can share it.

    Attributes:
        operands: descriptions of the leaves that the graph expects, in order: the parameters, buffers and constants of
            the model, then the inputs.
        arguments: the pytree structure of the inputs, (args, kwargs).
        keywords: the names in kwargs, in order.
        results: the pytree structure of the outputs.
        device: the device type on which the graph was captured.
        autocast: the autocast dtype during capture, which determines the dtypes in the graph. None if autocast was off.
    """

    operands: tuple[Expected | Constant, ...]
    arguments: pytree.TreeSpec
    keywords: tuple[str, ...]
    results: pytree.TreeSpec
    device: str
    autocast: torch.dtype | None

    def __deepcopy__(self, _: Any) -> CapturedCall:
        return self

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the leaves of a call. Keyword arguments are ordered as in the capture.

        Raises:
            ContractError: the containers of the call differ from the capture, or a positional argument is passed by
                keyword.
        """
        ordered = {name: kwargs[name] for name in (*self.keywords, *kwargs) if name in kwargs}
        leaves, found = pytree.tree_flatten((args, ordered))
        if found != self.arguments:
            raise ContractError(
                f"the graph was captured with the arguments {self.arguments}, but this call has {found}",
                where="call",
                fix="pass arguments structured like `example_inputs`, or fuse the model again with this structure",
            )
        return leaves

    def check(self, values: Sequence[Any]) -> None:
        """Checks the leaves of a call, in the order of `operands`, and the current autocast setting.

        Raises:
            ContractError: a leaf or the autocast setting differs from the capture.
        """
        if (now := autocast.current(self.device)) != self.autocast:
            raise ContractError(
                f"the graph was captured with autocast {self.autocast or 'off'}, but is called with {now or 'off'}",
                where="torch.autocast",
                fix="call `fuse` under the same autocast setting as the fused module",
            )
        dims: Values = {}
        for operand, value in zip(self.operands, values, strict=True):
            if isinstance(operand, Constant):
                operand.check(value)
            elif isinstance(value, Tensor):
                operand.check(value, dims)
            else:
                raise operand.no_tensor(value)


def _size(name: str, size: Any, ranges: Mapping[Any, Any]) -> Size:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    symbols = list(expression.free_symbols)
    offset = expression.subs(symbols[0], 0)
    factor = expression.subs(symbols[0], 1) - offset
    if (
        len(symbols) != 1
        or not (factor.is_Integer and offset.is_Integer)
        or (expression - factor * symbols[0] - offset).expand() != 0
    ):
        raise UnsupportedError(
            f"a size of {name} is {expression}, which is not a multiple of a single dim",
            where=name,
            fix="choose `dynamic_shapes` so that every size is a multiple of one dim",
        )
    bounds = ranges[symbols[0]]
    high = int(bounds.upper) if bounds.upper.is_Integer else UNBOUNDED
    dim = Dim(str(symbols[0]), int(bounds.lower), high)
    return dim if (factor, offset) == (1, 0) else Affine(dim, int(factor), int(offset))

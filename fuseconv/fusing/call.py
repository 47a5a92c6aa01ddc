"""The calls that a captured graph supports: the containers, and the dtype, device and sizes of every tensor.

Any other call is an error, because the graph is not verified for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fuseconv.errors import ContractError, UnsupportedError
from fuseconv.ops import autocast


@dataclass(frozen=True)
class Size:
    """A size `factor * dim + offset`, where the dim is between `low` and `high`."""

    dim: str
    factor: int
    offset: int
    low: int
    high: int | None


@dataclass(frozen=True)
class Operand:
    """The requirements for one leaf of a call.

    Attributes:
        name: the name in messages.
        dtype: the dtype of the tensor. None for a constant.
        device: the device of the tensor. None for a constant.
        shape: the sizes of the tensor. None for a constant.
        value: the constant.
    """

    name: str
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    shape: tuple[int | Size, ...] | None = None
    value: Any = None

    def check(self, found: Any, dims: dict[str, int]) -> None:
        """Checks one leaf of a call.

        Args:
            found: the leaf of the call.
            dims: the dims determined by earlier leaves. It is extended.

        Raises:
            ContractError: the leaf does not meet the requirements.
        """
        if self.dtype is None or self.device is None:
            if type(found) is not type(self.value) or found != self.value:
                raise self._differs(repr(self.value), repr(found))
        elif not isinstance(found, Tensor):
            raise self._differs(f"a tensor of {self.dtype}", repr(found))
        elif found.dtype != self.dtype or found.device.type != self.device.type:
            raise self._differs(f"{self.dtype} on {self.device}", f"{found.dtype} on {found.device}")
        elif self.shape is not None and not _fits(self.shape, found.shape, dims):
            raise self._differs(_text(self.shape, dims), str(list(found.shape)))

    def _differs(self, wanted: str, found: str) -> ContractError:
        return ContractError(
            f"{self.name} is {found}, but the graph was captured with {wanted}",
            where=self.name,
            fix="fuse the model again with inputs like these; name the sizes that may vary in `dynamic_shapes`",
        )


def operand_like(name: str, example: Any, ranges: Mapping[Any, Any]) -> Operand:
    """Returns the requirements for a placeholder.

    Args:
        name: the name of the placeholder.
        example: its fake value, or the constant it represents.
        ranges: symbol to the range of a dim.

    Raises:
        UnsupportedError: a size is not a multiple of one dim.
    """
    if not isinstance(example, Tensor):
        return Operand(name, value=example)
    return Operand(name, example.dtype, example.device, tuple(_size(name, size, ranges) for size in example.shape))


@dataclass(frozen=True)
class CapturedCall:
    """The calls that a captured graph supports. It is immutable, so that copies of a module can share it.

    Attributes:
        operands: the leaves that the graph takes, in order: the parameters, buffers and constants of the model, then
            the inputs.
        arguments: the containers of the inputs: (args, kwargs).
        keywords: the names in kwargs, in order.
        results: the containers of the outputs.
        device: the device type on which the graph was captured.
        autocast: the autocast setting during capture, which determines the dtypes in the graph.
    """

    operands: tuple[Operand, ...]
    arguments: pytree.TreeSpec
    keywords: tuple[str, ...]
    results: pytree.TreeSpec
    device: str
    autocast: torch.dtype | None

    def __deepcopy__(self, _: Any) -> CapturedCall:
        return self

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the leaves of a call, with keywords in the order of the capture.

        Raises:
            ContractError: the call has other containers, or passes a positional argument by keyword.
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
        """Checks the leaves of a call and the autocast setting.

        Raises:
            ContractError: a leaf or the autocast setting differs from the capture.
        """
        if (now := autocast.current(self.device)) != self.autocast:
            raise ContractError(
                f"the graph was captured with autocast {self.autocast or 'off'}, but is called with {now or 'off'}",
                where="torch.autocast",
                fix="call `fuse` under the same autocast setting as the fused module",
            )
        dims: dict[str, int] = {}
        for operand, value in zip(self.operands, values, strict=True):
            operand.check(value, dims)


def _size(name: str, size: Any, ranges: Mapping[Any, Any]) -> int | Size:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    symbols = list(expression.free_symbols)
    offset = expression.subs(symbols[0], 0)
    factor = expression.subs(symbols[0], 1) - offset
    if len(symbols) != 1 or (expression - factor * symbols[0] - offset).expand() != 0:
        raise UnsupportedError(
            f"a size of {name} is {expression}, which is not a multiple of a single dim",
            where=name,
            fix="choose `dynamic_shapes` so that every size is a multiple of one dim",
        )
    bounds = ranges[symbols[0]]
    high = int(bounds.upper) if bounds.upper.is_Integer else None
    return Size(str(symbols[0]), int(factor), int(offset), int(bounds.lower), high)


def _fits(shape: tuple[int | Size, ...], found: Sequence[int], dims: dict[str, int]) -> bool:
    if len(shape) != len(found):
        return False
    for size, length in zip(shape, found, strict=True):
        if isinstance(size, int):
            if size != length:
                return False
            continue
        value = (length - size.offset) // size.factor
        first = dims.setdefault(size.dim, value)
        if size.factor * first + size.offset != length or first < size.low or (size.high and first > size.high):
            return False
    return True


def _text(shape: tuple[int | Size, ...], dims: Mapping[str, int]) -> str:
    sizes = []
    for size in shape:
        if isinstance(size, int):
            sizes.append(str(size))
        else:
            known = f" = {dims[size.dim]}" if size.dim in dims else ""
            sizes.append(f"{size.dim}{known} in {size.low}..{'' if size.high is None else size.high}")
    return f"[{', '.join(sizes)}]"

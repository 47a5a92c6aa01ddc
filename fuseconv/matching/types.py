"""Writes the types of values as text: dtype, shape and, unless contiguous, strides. Dims have their contract names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy
import torch

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.program.captured import Program, dim_symbols

Dims = Mapping[Any, sympy.Symbol]
"""Maps the symbol of a size in the graph to a symbol named like its dim. The name is the same in every capture."""


def named_dims(program: Program) -> Dims:
    """Returns a mapping from each symbolic size of a program to a symbol with the name of its dim in the contract."""
    return {symbol: sympy.Symbol(name) for name, symbol in dim_symbols(program).items()}


def type_text(value: Any, dims: Dims) -> str:
    """Returns the dtype and shape of a tensor as text, and the strides too if the tensor is not contiguous.

    The strides are part of the type because the choice of a kernel depends on them.
    """
    if not isinstance(value, torch.Tensor):
        return str(_expression(value, dims))
    shape = [_expression(size, dims) for size in value.shape]
    text = f"{SHORT_DTYPES.get(str(value.dtype), str(value.dtype))}[{', '.join(map(str, shape))}]"
    if value.layout != torch.strided:
        return text
    strides = [_expression(stride, dims) for stride in value.stride()]
    dense = [math.prod(shape[at + 1 :], start=sympy.Integer(1)) for at in range(len(shape))]
    same = all(
        size == 1 or sympy.expand(one - other) == 0 for size, one, other in zip(shape, strides, dense, strict=True)
    )
    return text if same else f"{text} with strides {', '.join(map(str, strides))}"


def _expression(value: Any, dims: Dims) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr.subs(dims)
    return sympy.Integer(value) if type(value) is int else value

"""What a table of ops is, and the inputs of most.

A table is a set of functions of the same inputs; a program of all of them has one output (or several) per function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Functions = Mapping[str, Callable[..., object]]


@dataclass(frozen=True)
class Table:
    """Functions of the same inputs.

    Attributes:
        inputs: as `--input` takes them; `b` is the dynamic dim.
        functions: what is computed of them.
        sizes: of the dynamic dim.
        error: relative and absolute, of results that are not f16.
    """

    inputs: tuple[str, ...]
    functions: Functions
    sizes: tuple[int, ...] = (1, 3)
    error: float = 2e-5


ROWS = "x=f32[b:1..8,6,8]"
LINE = "x=f32[b:1..8,4,12]"
IMAGE = "x=f32[b:1..8,4,9,8]"
VOLUME = "x=f32[b:1..8,4,6,5,7]"
INTEGERS = ("i=i64[b:1..8,6]", "j=i64[b,6]")


def weight(*shape: int) -> Tensor:
    """Returns numbers that are no pattern, the same in every call."""
    return torch.sin(torch.arange(1.0, 1 + torch.Size(shape).numel()) * 1.7).reshape(shape)


def constant(*values: float) -> Tensor:
    return torch.tensor(values)

"""Values for the operands of a program: ordinary, of large and tiny magnitude, special, and laid out otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fuseconv.contract import TensorSpec
from fuseconv.inputs import torch_dtype
from fuseconv.values import LARGE

Values = Literal["random", "large", "tiny", "zero", "NaN", "infinite", "non-contiguous"]
VALUES: tuple[Values, ...] = get_args(Values)

_SCALES = {"large": LARGE, "tiny": 1e-3, "zero": 0.0}
_SPECIAL = {"NaN": (torch.nan,), "infinite": (torch.inf, -torch.inf)}
_RANGE = 9
"""Integers are drawn below it: large enough to differ, small enough to index the sizes of examples."""


@dataclass(frozen=True)
class Operands:
    """One tensor for each operand, and the words for how they were drawn."""

    tensors: tuple[torch.Tensor, ...]
    drawn: str


def draw_operands(
    specs: Sequence[TensorSpec], size: int, values: Values, seed: int, device: torch.device | str = "cpu"
) -> Operands:
    """Draws a tensor for each operand.

    Args:
        specs: names, dtypes and shapes.
        size: the least symbolic size; the next one is greater by 2, and so on, so that no two are equal.
        values: random are standard normal; large and tiny are that, multiplied; of NaN and infinite ones a few elements
            are, the others are random; non-contiguous ones have a gap after every element.
        seed: of the generator: the same call draws the same.
        device: where to draw. A GPU draws in a moment what takes a CPU seconds.
    """
    generator = torch.Generator(device).manual_seed(seed)
    sizes: dict[str, int] = {}
    for spec in specs:
        for dim in spec.dims():
            sizes.setdefault(dim.name, size + 2 * len(sizes))
    tensors = tuple(_draw(spec, spec.sizes(sizes), generator, values) for spec in specs)
    return Operands(tensors, f"{values} values")


def _draw(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, values: Values) -> torch.Tensor:
    dtype = torch_dtype(spec.dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        high = 2 if dtype == torch.bool else _RANGE
        return torch.randint(0, high, shape, generator=generator, device=generator.device).to(dtype)
    drawn = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
    drawn *= _SCALES.get(values, 1.0)
    for offset, special in enumerate(_SPECIAL.get(values, ())):
        drawn.view(-1)[offset * 4 :: 11] = special
    tensor = drawn.to(dtype)
    if values == "non-contiguous":
        tensor = torch.stack((tensor, torch.full_like(tensor, torch.nan)), -1)[..., 0]
    return tensor


def described(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> Iterator[str]:
    """Yields each operand as `x: f64[5, 8]`, with its strides where it is not contiguous."""
    for spec, tensor in zip(specs, tensors, strict=True):
        strides = "" if tensor.is_contiguous() else f" of strides {list(tensor.stride())}"
        yield f"{spec.name}: {spec.dtype}{list(tensor.shape)}{strides}"

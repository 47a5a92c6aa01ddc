"""Generates the values of one test tensor: ordinary values, and special values on which implementations differ.

Rows run along the first axis if its size is at least `FEW`, else along all axes except the last. Only some rows contain
special values, so that special values do not hide the ordinary ones.
"""

from __future__ import annotations

from typing import Literal

import torch

from fuseconv.contract.spec import TensorSpec

Kind = Literal[
    "random", "zeros and large", "indices", "integers", "all true", "all false", "NaN", "infinities", "extremes"
]
"""The kinds of values, which `values` describes. Tensors to which a kind does not apply are random."""

SPECIAL: tuple[Kind, ...] = ("NaN", "infinities", "extremes")
"""The kinds that runtimes other than PyTorch may treat differently."""

LARGE = 16.0
"""The magnitude of "large" floats in standard deviations: far in the tails of every activation, exact in all dtypes."""

FEW = 4
"""The minimum size at which the first axis is used as rows."""


def is_float(spec: TensorSpec) -> bool:
    """Returns whether a tensor is floating or complex."""
    return spec.dtype[0] in "fbc" and spec.dtype != "bool"


def is_integer(spec: TensorSpec) -> bool:
    """Returns whether a tensor has an integer dtype."""
    return spec.dtype[0] in "iu"


def is_mask(spec: TensorSpec) -> bool:
    """Returns whether a tensor is a mask, which its name and range show.

    A mask holds 0 and 1 in any dtype.
    """
    return "mask" in spec.name and (spec.low or 0) == 0 and spec.high in (None, 1)


def has_range(spec: TensorSpec) -> bool:
    """Returns whether the values of a tensor are bounded, by the user or by the table that it indexes."""
    return spec.low is not None or spec.high is not None


def kinds_for(specs: tuple[TensorSpec, ...]) -> tuple[Kind, ...]:
    """Returns the kinds of values that apply to any of these tensors, besides `random` and `zeros and large`."""
    integers = [spec for spec in specs if is_integer(spec) and not is_mask(spec)]
    concerned: dict[Kind, bool] = {
        "indices": any(has_range(spec) for spec in integers),
        "integers": any(not has_range(spec) for spec in integers),
        "all true": any(spec.dtype == "bool" for spec in specs),
        "all false": any(spec.dtype == "bool" for spec in specs),
    }
    concerned |= dict.fromkeys(SPECIAL, any(is_float(spec) and not has_range(spec) for spec in specs))
    return tuple(kind for kind, concerns in concerned.items() if concerns)


def values(
    spec: TensorSpec, dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator, kind: Kind
) -> torch.Tensor:
    """Generates a tensor.

    - `random`: standard normal, or within the range; integers within their range, or 0 or 1 without one.
    - `zeros and large`: even rows are zero or the low end, odd rows are large or the high end.
    - `indices`: integers with a range, spread evenly over it, including both ends.
    - `integers`: integers with a range as in `indices`; other integers are the limits of the dtype and small numbers of
      both signs.
    - `all true`, `all false`: booleans.
    - `NaN`: one NaN in every fourth row of a float tensor; the rest is random.
    - `infinities`: one infinity in every second row of a float tensor, of alternating sign; the rest is random.
    - `extremes`: float rows that are zero except for the largest positive or negative number; rows of the smallest
      normal and subnormal numbers of both signs, and of negative zero.

    Floats with a range stay within it.

    Args:
        spec: the name, short dtype and range.
        dtype: the torch dtype.
        shape: the shape of the tensor.
        generator: a generator on the CPU.
        kind: the kind of values.
    """
    if spec.dtype == "bool" and kind in ("all true", "all false"):
        return torch.full(shape, kind == "all true")
    if dtype.is_floating_point or dtype.is_complex:
        drawn = _floats(spec, dtype, shape, generator, kind)
        return drawn if has_range(spec) else _special(drawn, kind)
    if is_mask(spec) and len(shape) == 2 and shape[1] > 0:
        return _padding(shape, generator, kind).to(dtype)
    return _integers(spec, dtype, shape, generator, kind)


def _floats(
    spec: TensorSpec, dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator, kind: Kind
) -> torch.Tensor:
    low, high = 0.0 if spec.low is None else spec.low, 1.0 if spec.high is None else spec.high
    wide = torch.complex128 if dtype.is_complex else torch.float64
    drawn = torch.randn(shape, generator=generator, dtype=wide)
    if spec.low is not None and spec.high is not None:
        drawn = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind == "zeros and large":
        large = drawn * LARGE if spec.high is None else torch.full_like(drawn, high)
        drawn = _alternate(torch.zeros_like(drawn).clamp(spec.low, spec.high) if spec.low else drawn * 0, large)
    return drawn.to(dtype)


def _special(drawn: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Puts NaN, infinities or the limits of the dtype into some rows of a tensor."""
    if kind not in SPECIAL or drawn.numel() == 0:
        return drawn
    real = torch.view_as_real(drawn)[..., 0] if drawn.is_complex() else drawn
    info = torch.finfo(drawn.dtype)
    least = info.tiny * info.eps
    by_first = real.dim() > 0 and real.shape[0] >= FEW
    rows = real.reshape((real.shape[0], -1) if by_first else (-1, real.shape[-1] if real.dim() else 1)).clone()
    for at, row in enumerate(rows):
        place = at % row.numel()
        if kind == "NaN" and at % 4 == min(1, len(rows) - 1):
            row[place] = torch.nan
        elif kind == "infinities" and at % 2 == min(1, len(rows) - 1):
            row[place] = (torch.inf, -torch.inf)[at // 2 % 2]
        elif kind == "extremes":
            row.fill_((0.0, 0.0, info.tiny, least, -info.tiny, -least, -0.0)[at % 7])
            if at % 7 < 2:
                row[place] = (info.max, info.min)[at % 7]
    rows = rows.reshape(real.shape)
    return torch.complex(rows, torch.zeros_like(rows)) if drawn.is_complex() else rows


def _integers(
    spec: TensorSpec, dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator, kind: Kind
) -> torch.Tensor:
    low, high = int(0 if spec.low is None else spec.low), int(1 if spec.high is None else spec.high)
    count = torch.Size(shape).numel()
    if kind == "zeros and large":
        return _alternate(torch.full(shape, low), torch.full(shape, high)).to(dtype)
    if kind in ("indices", "integers") and has_range(spec) and not is_mask(spec):
        spread = torch.linspace(low, high, max(count, 2), dtype=torch.float64).round().to(torch.int64)
        spread[-1] = high
        return spread[torch.randperm(len(spread), generator=generator)[:count]].reshape(shape).to(dtype)
    if kind == "integers" and dtype != torch.bool and not is_mask(spec):
        info = torch.iinfo(dtype)
        chosen = [info.max, info.min, 0, 1, 2, 127, info.max - 1, info.min + 1]
        chosen += [-1, -2, -128] if info.min < 0 else []
        ends = torch.tensor(chosen).to(dtype).repeat(-(-count // len(chosen)))[:count]
        return ends[torch.randperm(count, generator=generator)].reshape(shape)
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def _padding(shape: tuple[int, ...], generator: torch.Generator, kind: Kind) -> torch.Tensor:
    """Returns a mask whose rows start with one or more ones."""
    lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
    if kind == "zeros and large":
        lengths = _alternate(torch.ones_like(lengths), torch.full_like(lengths, shape[1]))
    return torch.arange(shape[1]) < lengths


def _alternate(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Takes even rows from the first tensor and odd rows from the second.

    A scalar comes from the second tensor.
    """
    if even.dim() == 0:
        return odd
    rows = torch.arange(even.shape[0]).reshape(-1, *[1] * (even.dim() - 1))
    return torch.where(rows % 2 == 0, even, odd)

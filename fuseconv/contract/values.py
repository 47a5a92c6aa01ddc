"""Generates the values of one test tensor: ordinary values, and special values for which implementations differ.

A row is a slice along the first axis if that axis has at least `FEW` elements, else a slice along all axes except the
last. Some kinds of special values are put only into some rows, so that they do not hide ordinary values.
"""

from __future__ import annotations

from typing import Literal

import torch

from fuseconv.contract.spec import TensorSpec

Kind = Literal[
    "random", "zeros and large", "indices", "integers", "all true", "all false", "NaN", "infinities", "extremes"
]
"""The kinds of values, which `values` describes. A tensor to which a kind does not apply gets random values."""

SPECIAL: tuple[Kind, ...] = ("NaN", "infinities", "extremes")
"""The kinds for which the results of other runtimes may differ from PyTorch's."""

LARGE = 16.0
"""The factor by which "large" floats exceed standard normal values. Large floats are far in the tails of every
activation, and the factor is exact in all dtypes."""

FEW = 4
"""The minimum size at which the first axis is used as rows."""


def is_float(spec: TensorSpec) -> bool:
    """Returns whether a tensor has a floating-point or complex dtype."""
    return spec.dtype[0] in "fbc" and spec.dtype != "bool"


def is_integer(spec: TensorSpec) -> bool:
    """Returns whether a tensor has an integer dtype."""
    return spec.dtype[0] in "iu"


def is_mask(spec: TensorSpec) -> bool:
    """Returns whether a tensor is a mask of 0 and 1, in any dtype.

    A mask is recognized by `mask` in its name, and a range that is 0..1 or not given.
    """
    return "mask" in spec.name and (spec.low or 0) == 0 and spec.high in (None, 1)


def has_range(spec: TensorSpec) -> bool:
    """Returns whether the values of a tensor are bounded, by the user or by the size of a table that they index."""
    return spec.low is not None or spec.high is not None


def kinds_for(specs: tuple[TensorSpec, ...]) -> tuple[Kind, ...]:
    """Returns the kinds, other than `random` and `zeros and large`, that apply to at least one of these tensors."""
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
    """Generates a tensor with values of one kind, on the CPU.

    - `random`: floats are standard normal, or uniform within their range; integers are uniform within their range, or 0
      or 1 without a range.
    - `zeros and large`: even rows are zero or the low end of the range; odd rows are large or the high end.
    - `indices`: integers with a range, spread evenly over it, including both ends.
    - `integers`: integers with a range are as for `indices`; other integers are the limits of the dtype, and small
      numbers of both signs.
    - `all true`, `all false`: all elements of a bool tensor are True or False.
    - `NaN`: one NaN in every fourth row of a float tensor; the rest is random.
    - `infinities`: one infinity in every second row of a float tensor, of alternating sign; the rest is random.
    - `extremes`: the rows of a float tensor are, by turns, zeros with one largest positive or negative number, the
      smallest normal or subnormal number of either sign, or -0.0.

    Floats with a range get no NaN, infinities or extremes.

    Args:
        spec: the spec of the input, whose name, dtype and range determine the values.
        dtype: the torch dtype of the result.
        shape: the concrete shape of the result.
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
    """Returns the tensor, or for a kind in `SPECIAL` a copy with special values of this kind in some rows."""
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
    """Returns a bool mask [rows, tokens] in which every row consists of one or more True followed by False."""
    lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
    if kind == "zeros and large":
        lengths = _alternate(torch.ones_like(lengths), torch.full_like(lengths, shape[1]))
    return torch.arange(shape[1]) < lengths


def _alternate(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the even rows of `even` and the odd rows of `odd`; for scalars, returns `odd`."""
    if even.dim() == 0:
        return odd
    rows = torch.arange(even.shape[0]).reshape(-1, *[1] * (even.dim() - 1))
    return torch.where(rows % 2 == 0, even, odd)

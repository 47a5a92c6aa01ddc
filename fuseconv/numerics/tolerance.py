"""The one tolerance table, and the comparison of an output with the original's and with the truth in float64.

An output passes in one of two ways. It is `allclose` to the original's at the defaults of torch.testing; or it is
about as near to the truth as the original is. The second way is needed because a fused kernel rounds less often than
the kernels that it replaces: it may differ from the original and yet be the better of the two. docs/numerics.md
derives the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fuseconv.contract.spec import SHORT_DTYPES
from fuseconv.numerics.deviation import Deviation, deviation, device_of


@dataclass(frozen=True)
class Tolerance:
    """What a dtype allows.

    Attributes:
        rtol: relative part of the `allclose` test against the original.
        atol: absolute part of it, for values whose root mean square is 1 or more; for smaller ones as much less.
        factor: how many times the original's root-mean-square error an output may have.
    """

    rtol: float
    atol: float
    factor: float


# rtol and atol are the defaults of torch.testing.assert_close: what PyTorch holds its own kernels to.
# The factor is 2 because two correct roundings of one value may lie on either side of it, so two exact kernels that
# only sum in another order differ by about their own error. The half types get 3: they have so few bits that one
# rounding more or less moves the error by a large part of itself.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-7, 1e-7, 2),
    torch.float32: Tolerance(1.3e-6, 1e-5, 2),
    torch.float16: Tolerance(1e-3, 1e-5, 3),
    torch.bfloat16: Tolerance(1.6e-2, 1e-5, 3),
    torch.complex64: Tolerance(1.3e-6, 1e-5, 2),
    torch.complex128: Tolerance(1e-7, 1e-7, 2),
}

SMALL = 1024
"""Outputs of fewer elements get `SMALL_FACTOR`: the root mean square of a few errors scatters."""

SMALL_FACTOR = 3.0

PEAK = 4.0
"""The largest single error may be `PEAK` times `factor` times the original's largest. A mean over a million elements
forgives one that is plain wrong, at a tile's edge for example; this does not."""

FLOOR = 1.0
"""Errors below `FLOOR` * eps * rms(truth) always pass: two roundings of the result itself. The original's error can be
zero by luck, where all its values are representable, and no kernel can be asked for twice nothing."""


def table() -> dict[str, dict[str, float]]:
    """Returns the table as plain JSON values, by short dtype name, for the manifest."""
    return {SHORT_DTYPES[str(dtype)]: asdict(tolerance) for dtype, tolerance in TOLERANCES.items()}


@dataclass(frozen=True)
class Row:
    """One output compared.

    Attributes:
        ok: whether it passes.
        max_abs: the largest absolute difference from the original, over the elements finite in both.
        max_rel: the largest relative difference from the original, there.
        rmse_vs_fp64: root mean square of the difference from the float64 truth.
        rmse_original_vs_fp64: the same for the original.
        reason: why it does not pass; empty if it does.
    """

    ok: bool
    max_abs: float
    max_rel: float
    rmse_vs_fp64: float
    rmse_original_vs_fp64: float
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; a figure that could not be taken is null."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def compare(
    actual: torch.Tensor,
    original: torch.Tensor,
    truth: torch.Tensor,
    *,
    may_overflow: bool = False,
    by_truth: bool = False,
) -> Row:
    """Judges `actual` by the original's output and by the truth.

    Args:
        actual: the output under test.
        original: what the original model gives, in its own dtype.
        truth: what it gives in float64 (complex128); of any dtype where `original` is of no floating dtype.
        may_overflow: whether the inputs are at the ends of their dtype: elements of which the original has not
            half of the digits right, because a value inside left the dtype's range, are not judged.
        by_truth: whether to be close to the original is not enough: the error against the truth decides.
    """
    if actual.dtype != original.dtype:
        return incomparable(f"dtype {actual.dtype}, but the original has {original.dtype}")
    if actual.shape != original.shape:
        return incomparable(f"shape {list(actual.shape)}, but the original has {list(original.shape)}")
    if original.dtype not in TOLERANCES:
        return _compare_exactly(actual, original)
    if original.is_complex():
        actual, original, truth = (torch.view_as_real(t.detach().resolve_conj()) for t in (actual, original, truth))
    if may_overflow:
        actual = _where_judged(actual, original, truth)
    return _compare_floats(actual, _without_stray_nan(actual, original, truth), truth, by_truth)


def _where_judged(actual: torch.Tensor, original: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Returns an output with the original's elements where that misses half the digits of a truth within its range."""
    device, info = device_of(actual, original, truth), torch.finfo(original.dtype)
    actual, original, truth = (tensor.detach().to(device) for tensor in (actual, original, truth))
    right = (original.to(torch.float64) - truth).abs() <= truth.abs() * math.sqrt(info.eps) + info.tiny
    return torch.where(~right & (truth.abs() <= info.max), original, actual)


def _without_stray_nan(actual: torch.Tensor, original: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Returns the original, infinite where it alone is NaN and the truth lies beyond its dtype.

    Where torch computes GELU by oneDNN, in float32 on some processors, that of infinity is NaN.
    """
    device = device_of(actual, original, truth)
    if not bool(original.isnan().any()):
        return original
    actual, original, truth = (tensor.detach().to(device) for tensor in (actual, original, truth))
    rounded = truth.to(original.dtype)
    return torch.where(original.isnan() & ~actual.isnan() & rounded.isinf(), rounded, original)


def incomparable(reason: str) -> Row:
    """Returns the row of an output that cannot be compared at all."""
    return Row(False, math.nan, math.nan, math.nan, math.nan, reason)


def _compare_exactly(actual: torch.Tensor, original: torch.Tensor) -> Row:
    """Integers and booleans carry no rounding: they are equal or wrong."""
    actual, original = (tensor.to(device_of(actual, original)) for tensor in (actual, original))
    wrong = actual != original
    if not wrong.any():
        return Row(True, 0.0, 0.0, 0.0, 0.0)
    distance = (actual.to(torch.float64) - original.to(torch.float64)).abs()
    largest, relative = _max(distance), _max(distance / original.to(torch.float64).abs())
    reason = f"{int(wrong.sum())} of {wrong.numel()} elements differ; {original.dtype} values must be equal"
    return Row(False, largest, relative, _rms(distance), 0.0, reason)


def _compare_floats(actual: torch.Tensor, original: torch.Tensor, truth: torch.Tensor, by_truth: bool) -> Row:
    tolerance, info = TOLERANCES[original.dtype], torch.finfo(original.dtype)
    eps, least = info.eps, info.eps * info.tiny  # the least number that the dtype has
    found = deviation(actual, original, truth, atol=tolerance.atol, rtol=tolerance.rtol)
    if (scale := _scale(found)) < 1:
        found = deviation(actual, original, truth, atol=tolerance.atol * scale, rtol=tolerance.rtol)
    figures = (found.max_abs, found.max_rel, found.rmse, found.rmse_original)

    if found.special:
        return Row(False, *figures, _special_values_differ(actual, original))
    if found.excess <= 0 and not by_truth:
        return Row(True, *figures)
    factor = max(tolerance.factor, SMALL_FACTOR if original.numel() < SMALL else 0.0)
    if found.rmse > factor * found.rmse_original + FLOOR * (eps * found.rms_truth + least):
        return Row(
            False, *figures, f"rmse against float64 {found.rmse:.2e}, the original's is {found.rmse_original:.2e}"
        )
    if found.peak > PEAK * (factor * found.peak_original + eps * found.max_truth + least):
        said = f"largest error against float64 {found.peak:.2e}, the original's is {found.peak_original:.2e}"
        return Row(False, *figures, said)
    return Row(True, *figures)


def _scale(found: Deviation) -> float:
    """Returns what the absolute tolerance is taken of: outputs of 1e-7 are judged as outputs of 1 are.

    Where the original has no digit of the truth right, as in the gradient of what cancels, or the truth is zero
    throughout, the output is rounding alone and has no scale of its own; it is judged as outputs of 1.
    """
    has_digits = found.rmse_original < found.rms_truth / 2
    return min(found.rms_truth, 1.0) if has_digits else 1.0


def _special_values_differ(actual: torch.Tensor, original: torch.Tensor) -> str:
    """Says which of NaN, +Inf and -Inf does not appear exactly where the original has it."""
    actual, original = (tensor.to(device_of(actual, original)) for tensor in (actual, original))
    for name, of in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        found, expected = of(actual), of(original)
        if not torch.equal(found, expected):
            return f"{name} at other positions: {int(found.sum())} elements, {int(expected.sum())} in the original"
    return ""


def _max(values: torch.Tensor) -> float:
    values = values[~values.isnan()]  # 0/0, where both are zero, is no relative difference
    return float(values.max()) if values.numel() else 0.0


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0

"""Defines the tolerance of each dtype, and compares an output with the original model's and the fp64 reference.

An output passes if it is `allclose` to the original model's output with the default tolerances of torch.testing. It
also passes if its error against the fp64 reference is at most a small multiple of the original output's error. The
second criterion is needed because a fused kernel rounds less often than the kernels that it replaces: its output may
differ from the original output and still be more accurate. docs/numerics.md derives the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.numerics.deviation import Deviation, deviation, device_of


@dataclass(frozen=True)
class Tolerance:
    """The tolerance for outputs of one dtype.

    Attributes:
        rtol: the relative tolerance of the `allclose` test against the original's output.
        atol: the absolute tolerance of this test, for values with a root mean square of 1 or more. It is scaled down
            for smaller values; see `_scale`.
        factor: the largest allowed ratio of the output's root-mean-square error to the original output's. Both errors
            are measured against the fp64 reference.
    """

    rtol: float
    atol: float
    factor: float


# rtol and atol are the defaults of torch.testing.assert_close, with which PyTorch's own kernels are tested.
# The factor is 2 because two correct roundings of a value may lie on opposite sides of it: two kernels that only sum in
# a different order differ by about as much as each differs from the exact result. The 16-bit dtypes have a factor of 3,
# because they have so few mantissa bits that one additional rounding changes the error considerably.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-7, 1e-7, 2),
    torch.float32: Tolerance(1.3e-6, 1e-5, 2),
    torch.float16: Tolerance(1e-3, 1e-5, 3),
    torch.bfloat16: Tolerance(1.6e-2, 1e-5, 3),
    torch.complex64: Tolerance(1.3e-6, 1e-5, 2),
    torch.complex128: Tolerance(1e-7, 1e-7, 2),
}

SMALL = 1024
"""For outputs with fewer elements than this, the factor is at least `SMALL_FACTOR`, because the root mean square of
only a few errors varies strongly."""

SMALL_FACTOR = 3.0

PEAK = 4.0
"""The output's largest error may be at most `PEAK` times `factor` times the original's largest error. This limit
catches a single wrong element, for example at the edge of a tile, which a mean over a million elements would hide."""

FLOOR = 1.0
"""The root-mean-square error may always be `FLOOR` * eps * rms(reference), which is two roundings of the result. This
floor is needed because the original's error is zero if all its values happen to be exactly representable, and a
multiple of zero would allow no error at all."""


def table() -> dict[str, dict[str, float]]:
    """Returns the tolerance table as JSON values for the manifest. Maps each short dtype name to its tolerance."""
    return {SHORT_DTYPES[str(dtype)]: asdict(tolerance) for dtype, tolerance in TOLERANCES.items()}


@dataclass(frozen=True)
class Row:
    """The result of comparing one output with the original's output and with the fp64 reference.

    All statistics are NaN if the output cannot be compared.

    Attributes:
        ok: whether the output passes.
        max_abs: the largest absolute difference from the original's output, over the elements that are finite in both.
        max_rel: the largest difference from the original's output relative to its magnitude, over the same elements.
        rmse_vs_fp64: the root-mean-square error of the output against the fp64 reference.
        rmse_original_vs_fp64: the root-mean-square error of the original's output against the fp64 reference.
        reason: why the output fails. Empty if it passes.
    """

    ok: bool
    max_abs: float
    max_rel: float
    rmse_vs_fp64: float
    rmse_original_vs_fp64: float
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values by attribute name. A statistic that is NaN or infinite becomes null."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def compare(
    actual: torch.Tensor,
    original: torch.Tensor,
    fp64: torch.Tensor,
    *,
    may_overflow: bool = False,
    fp64_only: bool = False,
    cudnn: bool = False,
) -> Row:
    """Compares an output with the original's output and with the fp64 reference.

    Args:
        actual: the output under test, of any shape.
        original: the output of the original model, in the model's own dtype.
        fp64: the fp64 reference: the output of the original model computed in float64 (complex128 for a complex
            output). Ignored if `original` is integer or bool, because such outputs must be equal. If its shape is not
            that of `original`, because a size depends on values that float64 rounds otherwise, `original` takes its
            place: the output must then be as close to `original` as rounding alone explains.
        may_overflow: whether the inputs are at the limits of their dtype, where intermediate values overflow or
            underflow. If so, the comparison ignores elements for which fewer than half of the original's digits are
            correct.
        fp64_only: whether the output must pass by its error against the fp64 reference, even if it is `allclose` to the
            original's output.
        cudnn: whether the original may contain convolutions of cuDNN. Its kernels for channels-first 16-bit tensors
            return infinities for NaN.
    """
    if actual.dtype != original.dtype:
        return incomparable(f"the output's dtype is {actual.dtype}, but the original's is {original.dtype}")
    if actual.shape != original.shape:
        return incomparable(f"the output's shape is {list(actual.shape)}, but the original's is {list(original.shape)}")
    if original.dtype not in TOLERANCES:
        return _compare_exactly(actual, original)
    if fp64.shape != original.shape:
        fp64 = original.to(torch.complex128 if original.is_complex() else torch.float64)
    if original.is_complex():
        actual, original, fp64 = (torch.view_as_real(t.detach().resolve_conj()) for t in (actual, original, fp64))
    if may_overflow:
        actual = _where_compared(actual, original, fp64)
    return _compare_floats(actual, _with_settled_specials(actual, original, fp64, cudnn), fp64, fp64_only)


def _where_compared(actual: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor) -> torch.Tensor:
    """Copies elements of `original` into a copy of `actual` where `original` is inaccurate, so that these agree.

    `original` is inaccurate where fewer than half of its digits agree with a reference value in the dtype's range.
    """
    device, info = device_of(actual, original, fp64), torch.finfo(original.dtype)
    actual, original, fp64 = (tensor.detach().to(device) for tensor in (actual, original, fp64))
    right = (original.to(torch.float64) - fp64).abs() <= fp64.abs() * math.sqrt(info.eps) + info.tiny
    return torch.where(~right & (fp64.abs() <= info.max), original, actual)


def _with_settled_specials(
    actual: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor, cudnn: bool
) -> torch.Tensor:
    """Returns the original output with the NaN and infinities of `actual` where the original is wrong.

    An infinity is right where the reference, rounded to the dtype, is the same infinity. On some processors torch
    computes float32 GELU with oneDNN, which returns NaN for infinity. `cudnn` allows NaN and infinities where the
    reference is NaN but the original is not.
    """
    if bool(actual.isfinite().all()):
        return original
    device = device_of(actual, original, fp64)
    actual, original, fp64 = (tensor.detach().to(device) for tensor in (actual, original, fp64))
    rounded = fp64.to(original.dtype)
    settled = actual.isinf() & (actual == rounded)
    if cudnn:
        settled |= ~actual.isfinite() & rounded.isnan() & ~original.isnan()
    return torch.where(settled, actual, original)


def incomparable(reason: str) -> Row:
    """Returns a failing row, without statistics, for an output that cannot be compared."""
    return Row(False, math.nan, math.nan, math.nan, math.nan, reason)


def _compare_exactly(actual: torch.Tensor, original: torch.Tensor) -> Row:
    """Compares integer or bool outputs, which must be equal, because they have no rounding error."""
    actual, original = (tensor.to(device_of(actual, original)) for tensor in (actual, original))
    wrong = actual != original
    if not wrong.any():
        return Row(True, 0.0, 0.0, 0.0, 0.0)
    distance = (actual.to(torch.float64) - original.to(torch.float64)).abs()
    largest, relative = _max(distance), _max(distance / original.to(torch.float64).abs())
    reason = f"{int(wrong.sum())} of {wrong.numel()} elements differ; {original.dtype} values must be equal"
    return Row(False, largest, relative, _rms(distance), 0.0, reason)


def _compare_floats(actual: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor, fp64_only: bool) -> Row:
    """Compares real floating-point outputs: by `allclose` with the original output, or else by the fp64 error."""
    tolerance, info = TOLERANCES[original.dtype], torch.finfo(original.dtype)
    eps, least = info.eps, info.eps * info.tiny  # the smallest positive (subnormal) number of the dtype
    found = deviation(actual, original, fp64, atol=tolerance.atol, rtol=tolerance.rtol)
    if (scale := _scale(found)) < 1:
        found = deviation(actual, original, fp64, atol=tolerance.atol * scale, rtol=tolerance.rtol)
    figures = (found.max_abs, found.max_rel, found.rmse, found.rmse_original)

    if found.special:
        return Row(False, *figures, _special_values_differ(actual, original))
    if found.excess <= 0 and not fp64_only:
        return Row(True, *figures)
    factor = max(tolerance.factor, SMALL_FACTOR if original.numel() < SMALL else 0.0)
    if found.rmse > factor * found.rmse_original + FLOOR * (eps * found.rms_fp64 + least):
        return Row(
            False, *figures, f"rmse against float64 {found.rmse:.2e}, the original's is {found.rmse_original:.2e}"
        )
    if found.peak > PEAK * (factor * found.peak_original + eps * found.max_fp64 + least):
        said = f"largest error against float64 {found.peak:.2e}, the original's is {found.peak_original:.2e}"
        return Row(False, *figures, said)
    return Row(True, *figures)


def _scale(found: Deviation) -> float:
    """Returns the factor by which the absolute tolerance is multiplied: rms(reference), but at most 1.

    With this factor, outputs of 1e-7 are compared as strictly as outputs of 1. The factor is 1 if the original has no
    correct digit, as in a gradient whose terms cancel, or if the reference is zero everywhere: such an output consists
    of rounding errors only and has no scale of its own.
    """
    has_digits = found.rmse_original < found.rms_fp64 / 2
    return min(found.rms_fp64, 1.0) if has_digits else 1.0


def _special_values_differ(actual: torch.Tensor, original: torch.Tensor) -> str:
    """Returns a message for the first of NaN, +Inf and -Inf that occurs at other positions than in the original.

    Returns an empty string if all three occur at the same positions.
    """
    actual, original = (tensor.to(device_of(actual, original)) for tensor in (actual, original))
    for name, of in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        found, expected = of(actual), of(original)
        if not torch.equal(found, expected):
            return f"{name} at other positions: {int(found.sum())} elements, {int(expected.sum())} in the original"
    return ""


def _max(values: torch.Tensor) -> float:
    """Returns the largest value other than NaN, or 0 if there is none."""
    values = values[~values.isnan()]  # a relative difference of 0/0 is no difference
    return float(values.max()) if values.numel() else 0.0


def _rms(values: torch.Tensor) -> float:
    """Returns the root mean square of the values, or 0 if there are none."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0

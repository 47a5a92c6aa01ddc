"""Computes error statistics of an output against the original model's output and the fp64 reference.

The output of a language model can have 2.6e8 elements, and the statistics need a dozen float64 intermediate values for
each element. To limit memory, the tensors are processed in slabs of `SLAB` elements. To avoid transfers from an
accelerator, the statistics are computed on the device that holds the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SLAB = 2**20
"""The number of elements per slab: 8 MB in float64."""


@dataclass(frozen=True)
class Deviation:
    """Error statistics of an output against the original model's output and the fp64 reference.

    Differences from the original model's output are taken over the elements that are finite in both tensors. Errors
    against the fp64 reference are taken over the elements that are finite in all three tensors. All statistics are 0 if
    there are no such elements.

    Attributes:
        max_abs: the largest absolute difference from the original's output.
        max_rel: the largest difference from the original's output divided by its magnitude. Equal elements count as 0.
        excess: the largest value of `|output - original| - (atol + rtol * |original|)`. It is 0 or negative if all
            elements are within tolerance.
        rmse: the root-mean-square error of the output against the fp64 reference.
        rmse_original: the root-mean-square error of the original's output against the fp64 reference.
        rms_fp64: the root mean square of the fp64 reference.
        peak: the largest absolute error of the output against the fp64 reference.
        peak_original: the largest absolute error of the original's output against the fp64 reference.
        max_fp64: the largest magnitude of the fp64 reference.
        special: whether the output and the original's output differ in any element that is NaN or infinite in either.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    excess: float = 0.0
    rmse: float = 0.0
    rmse_original: float = 0.0
    rms_fp64: float = 0.0
    peak: float = 0.0
    peak_original: float = 0.0
    max_fp64: float = 0.0
    special: bool = False


def device_of(*tensors: torch.Tensor) -> torch.device:
    """Returns the device of the first tensor that is on an accelerator, or the CPU if all tensors are on the CPU."""
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))


def deviation(
    actual: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor, *, atol: float, rtol: float
) -> Deviation:
    """Returns the error statistics of an output, computed in float64.

    Args:
        actual: the output, a real floating-point tensor of any shape, on any device.
        original: the original model's output, with the same shape as `actual`.
        fp64: the fp64 reference, with the same shape as `actual`.
        atol: the absolute tolerance for `excess`.
        rtol: the relative tolerance for `excess`.
    """
    device = device_of(actual, original, fp64)
    slabs = zip(*(torch.split(tensor.detach().reshape(-1), SLAB) for tensor in (actual, original, fp64)), strict=True)
    figures = [
        _figures([one.to(device, torch.float64) for one in three], atol, rtol) for three in slabs if three[0].numel()
    ]
    if not figures:
        return Deviation()
    maxima = [max(column) for column in zip(*(maxima for maxima, _ in figures), strict=True)]
    sums = [sum(column) for column in zip(*(sums for _, sums in figures), strict=True)]
    max_abs, max_rel, excess, peak, peak_original, max_fp64, special = maxima
    rmse, rmse_original, rms_fp64 = (math.sqrt(squares / max(sums[0], 1)) for squares in sums[1:])
    return Deviation(
        max_abs, max_rel, excess, rmse, rmse_original, rms_fp64, peak, peak_original, max_fp64, bool(special)
    )


def _figures(slab: Sequence[torch.Tensor], atol: float, rtol: float) -> tuple[list[float], list[float]]:
    """Computes the maxima and the sums of one slab, which `deviation` combines. Non-finite elements contribute 0.

    Args:
        slab: the output, the original's output and the fp64 reference, in float64 and one-dimensional.
        atol: the absolute tolerance for `excess`.
        rtol: the relative tolerance for `excess`.
    """
    actual, original, fp64 = slab
    nothing = torch.zeros((), dtype=torch.float64, device=actual.device)
    finite = actual.isfinite() & original.isfinite()
    compared = finite & fp64.isfinite()
    distance = torch.where(finite, (actual - original).abs(), nothing)
    size = torch.where(finite, original.abs(), nothing)
    error, error_original = (torch.where(compared, (value - fp64).abs(), nothing) for value in (actual, original))
    true = torch.where(compared, fp64.abs(), nothing)
    alike = finite | (actual == original) | (actual.isnan() & original.isnan())
    maxima = (
        distance.max(),
        torch.where(distance > 0, distance / size, nothing).max(),
        (distance - (atol + rtol * size)).max(),
        error.max(),
        error_original.max(),
        true.max(),
        (~alike).any().double(),
    )
    sums = (compared.sum().double(), *(value.square().sum() for value in (error, error_original, true)))
    figures: list[float] = torch.stack([*maxima, *sums]).tolist()
    return figures[: len(maxima)], figures[len(maxima) :]

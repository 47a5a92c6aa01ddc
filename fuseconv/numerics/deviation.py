"""How far an output lies from the original's and from the truth: a few figures, taken slab by slab where the output is.

An output of a language model has 2.6e8 elements and a dozen intermediate values in float64 for each: in slabs they need
no memory to speak of, and on the output's own device no transfer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SLAB = 2**20
"""Elements at a time: 8 MB in float64."""


@dataclass(frozen=True)
class Deviation:
    """Figures over all elements. Those on the original are taken where both are finite, those on truth where all are.

    Attributes:
        max_abs: the largest distance from the original.
        max_rel: the largest distance, relative to the original's size; 0 where they are equal.
        excess: the largest distance beyond what `atol + rtol * |original|` allows; not positive if all is allowed.
        rmse: root mean square of the error.
        rmse_original: of the original's error.
        rms_truth: of the truth itself.
        peak: the largest error.
        peak_original: the original's largest error.
        max_truth: the largest truth.
        special: whether NaN, +Inf or -Inf stands where the original has something else, or the other way round.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    excess: float = 0.0
    rmse: float = 0.0
    rmse_original: float = 0.0
    rms_truth: float = 0.0
    peak: float = 0.0
    peak_original: float = 0.0
    max_truth: float = 0.0
    special: bool = False


def device_of(*tensors: torch.Tensor) -> torch.device:
    """Returns the accelerator that one of the tensors is on, or the CPU."""
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))


def deviation(
    actual: torch.Tensor, original: torch.Tensor, truth: torch.Tensor, *, atol: float, rtol: float
) -> Deviation:
    """Takes the figures of three real floating tensors of one shape, on any devices, computing in float64."""
    device = device_of(actual, original, truth)
    slabs = zip(*(torch.split(tensor.detach().reshape(-1), SLAB) for tensor in (actual, original, truth)), strict=True)
    figures = [
        _figures([one.to(device, torch.float64) for one in three], atol, rtol) for three in slabs if three[0].numel()
    ]
    if not figures:
        return Deviation()
    maxima = [max(column) for column in zip(*(maxima for maxima, _ in figures), strict=True)]
    sums = [sum(column) for column in zip(*(sums for _, sums in figures), strict=True)]
    max_abs, max_rel, excess, peak, peak_original, max_truth, special = maxima
    rmse, rmse_original, rms_truth = (math.sqrt(squares / max(sums[0], 1)) for squares in sums[1:])
    return Deviation(
        max_abs, max_rel, excess, rmse, rmse_original, rms_truth, peak, peak_original, max_truth, bool(special)
    )


def _figures(slab: Sequence[torch.Tensor], atol: float, rtol: float) -> tuple[list[float], list[float]]:
    """Maxima and sums of a slab of the three; what is not judged counts as no distance and no error."""
    actual, original, truth = slab
    nothing = torch.zeros((), dtype=torch.float64, device=actual.device)
    finite = actual.isfinite() & original.isfinite()
    judged = finite & truth.isfinite()
    distance = torch.where(finite, (actual - original).abs(), nothing)
    size = torch.where(finite, original.abs(), nothing)
    error, error_original = (torch.where(judged, (value - truth).abs(), nothing) for value in (actual, original))
    true = torch.where(judged, truth.abs(), nothing)
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
    sums = (judged.sum().double(), *(value.square().sum() for value in (error, error_original, true)))
    figures: list[float] = torch.stack([*maxima, *sums]).tolist()
    return figures[: len(maxima)], figures[len(maxima) :]

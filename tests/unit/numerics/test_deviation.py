"""Error statistics computed in slabs equal those of the whole tensor."""

from __future__ import annotations

import math

import pytest
import torch

from fuseconv.numerics.deviation import SLAB, Deviation, deviation

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SIZES = {"one": 1, "a slab": SLAB, "a slab and one": SLAB + 1, "two and some": 2 * SLAB + 3}


def draw(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", SIZES.values(), ids=SIZES.keys())
def test_they_are_those_of_the_whole(count: int, device: str) -> None:
    fp64 = draw(count, 0)
    original, actual = fp64.float(), (fp64 + 1e-3 * draw(count, 1)).float()
    found = deviation(actual.to(device), original, fp64, atol=1e-5, rtol=1e-6)
    distance, error, own = (actual.double() - original.double()).abs(), actual - fp64, original - fp64
    right = Deviation(
        max_abs=float(distance.max()),
        max_rel=float((distance / original.double().abs()).max()),
        excess=float((distance - 1e-5 - 1e-6 * original.double().abs()).max()),
        rmse=float(error.square().mean().sqrt()),
        rmse_original=float(own.square().mean().sqrt()),
        rms_fp64=float(fp64.square().mean().sqrt()),
        peak=float(error.abs().max()),
        peak_original=float(own.abs().max()),
        max_fp64=float(fp64.abs().max()),
    )
    for name, value in vars(right).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at", [0, SLAB - 1, SLAB, -1])
@pytest.mark.parametrize(
    ("value", "other", "special"),
    [(math.nan, 0.0, True), (math.inf, -math.inf, True), (math.nan, math.nan, False), (0.0, 3.0, False)],
)
def test_one_element_shows_wherever_it_stands(at: int, device: str, value: float, other: float, special: bool) -> None:
    fp64 = torch.zeros(2 * SLAB + 3, dtype=torch.float64)
    actual, original = fp64.float().to(device), fp64.float()
    actual[at], original[at], fp64[at] = value, other, other
    found = deviation(actual, original, fp64, atol=0, rtol=0)
    assert found.special == special
    assert found.max_abs == found.peak == (3 if other == 3 else 0)
    assert found.rmse == pytest.approx(math.sqrt(9 / fp64.numel()) if other == 3 else 0)


def test_strides_do_not_matter() -> None:
    fp64 = draw(1200, 0).reshape(30, 40)
    original = fp64.float()
    right = deviation(original.half().float(), original, fp64, atol=0, rtol=0)
    turned = original.half().float().t().contiguous().t()
    assert deviation(turned, original, fp64.t().contiguous().t(), atol=0, rtol=0) == right


def test_nothing_deviates_by_nothing() -> None:
    nothing = torch.empty(0, 3)
    assert deviation(nothing, nothing, nothing, atol=0, rtol=0) == Deviation()

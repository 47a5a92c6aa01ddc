"""The bound of a layer's error in 16 bits: two roundings at any place are within it, three are not."""

import pytest
import torch
from support.roundings import rounded_twice
from torch import Tensor
from torch.nn import functional as F

BIAS_SIZE = 2.0  # so large that it matters whether the first rounding is before or after the bias is added


def rms(y: Tensor, reference: Tensor) -> float:
    return (y.double() - reference).square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_roundings_are_within_the_bound_and_three_are_not(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = ((512, 64), (128, 64), (128,), (512, 128))
    x, weight, b, r = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    weight, b = weight / 8, BIAS_SIZE * b
    product, reference = x @ weight.T, F.relu(x @ weight.T + b + r)
    bound = 1.01 * max(rms(y, reference) for y in rounded_twice(x, weight, b, F.relu, r, "residual first", dtype))

    def rounded(y: Tensor) -> Tensor:
        return y.to(dtype).double()

    assert rms(rounded(reference), reference) <= bound
    for two in (rounded(product) + b + r, rounded(product + b) + r, rounded(product + r) + b):
        assert rms(rounded(F.relu(two)), reference) <= bound
    three = rounded(rounded(product) + b) + r
    assert rms(rounded(F.relu(three)), reference) > bound


@pytest.mark.parametrize(
    ("form", "count"), [("plain", 2), ("residual", 3), ("residual first", 4), ("gated", 2)], ids=str
)
def test_each_place_of_the_first_rounding_is_tried(form: str, count: int) -> None:
    x, weight, b, r = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6), torch.randn(4, 6)
    residual = r.double() if form.startswith("residual") else None
    results = list(rounded_twice(x.double(), weight.double(), b.double(), F.silu, residual, form, torch.bfloat16))
    assert len(results) == count
    assert {(y.dtype, y.shape) for y in results} == {(torch.bfloat16, (4, 3 if form == "gated" else 6))}

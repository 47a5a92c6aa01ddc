"""The tolerance table and the comparison of one output."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support import ROOT

from fuseconv.numerics.tolerance import (
    PEAK,
    SMALL,
    TOLERANCES,
    compare,
)

NAN, INF = math.nan, math.inf


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_table_holds_the_defaults_of_torch_testing() -> None:
    for dtype, tolerance in TOLERANCES.items():
        assert torch.testing._comparison.default_tolerances(dtype) == (tolerance.rtol, tolerance.atol)


def test_the_page_on_numerics_shows_this_table() -> None:
    page = (ROOT / "docs" / "numerics.md").read_text()
    for dtype, tolerance in TOLERANCES.items():
        name = str(dtype).removeprefix("torch.")
        assert f"| {name} | {tolerance.rtol} | {tolerance.atol} | {tolerance.factor:g} |" in page
    assert f"fewer than {SMALL} elements" in page
    assert f"`{PEAK:g} * factor` times" in page


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_original_passes_and_a_wrong_element_does_not(dtype: torch.dtype) -> None:
    fp64 = draw(64, 64).to(torch.complex128 if dtype.is_complex else torch.float64)
    original = fp64.to(dtype)
    row = compare(original, original, fp64)
    assert row.ok
    assert row.max_abs == row.max_rel == 0
    assert row.rmse_vs_fp64 == row.rmse_original_vs_fp64
    wrong = original.clone()
    wrong[63, 63] += 0.5
    row = compare(wrong, original, fp64)
    assert not row.ok
    assert row.max_abs == pytest.approx(0.5, rel=0.02)
    assert "against float64" in row.reason


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-7, 1e-20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_small_outputs_are_judged_as_those_of_ordinary_size(dtype: torch.dtype, scale: float) -> None:
    fp64 = scale * draw(64, 64).to(torch.complex128 if dtype.is_complex else torch.float64)
    original = fp64.to(dtype)
    again = (fp64 * (1 + torch.finfo(dtype).eps * draw(64, 64, seed=1).sign() / 2)).to(dtype)
    assert compare(again, original, fp64).ok
    for wrong in (original * 2, original * 0, original * 1.1, -original, original.roll(1)):
        assert not compare(wrong, original, fp64).ok


def test_a_reference_of_zeros_has_no_scale_and_is_judged_as_one_of_ordinary_size() -> None:
    zeros = torch.zeros(64, dtype=torch.float64)
    assert compare(torch.full((64,), 1e-6), zeros.float(), zeros).ok
    assert not compare(torch.full((64,), 1e-4), zeros.float(), zeros).ok


def test_what_is_rounding_alone_has_no_scale_of_its_own() -> None:
    fp64 = 1e-17 * draw(64)  # the gradient of a bias that softmax cancels
    assert compare((3e-7 * draw(64, seed=1)).float(), (4e-8 * draw(64, seed=2)).float(), fp64).ok
    assert not compare((1e-3 * draw(64, seed=1)).float(), (4e-8 * draw(64, seed=2)).float(), fp64).ok


def test_the_least_numbers_of_a_dtype_may_be_rounded_either_way() -> None:
    fp64 = torch.full((4096,), 6e-8, dtype=torch.float64)  # float16 has 0, 6e-8 and 1.2e-7
    original = fp64.half()
    assert compare(torch.full_like(original, 1.2e-7), original, fp64).ok
    assert not compare(torch.full_like(original, 1e-6), original, fp64).ok


def test_a_more_exact_result_passes_though_it_is_not_close_to_the_original() -> None:
    fp64 = draw(10000)
    original = (fp64 + 1e-3 * draw(10000, seed=1)).float()
    exact = fp64.float()
    assert not torch.allclose(exact, original, rtol=1.3e-6, atol=1e-5)
    assert compare(exact, original, fp64).ok
    assert not compare(original, exact, fp64).ok


@pytest.mark.parametrize(("dtype", "count", "factor"), [
    (torch.float32, 10000, 2), (torch.float32, 100, 3), (torch.float16, 10000, 3), (torch.bfloat16, 10000, 3),
])  # fmt: skip
def test_the_error_may_be_a_small_multiple_of_the_original_s(dtype: torch.dtype, count: int, factor: int) -> None:
    fp64, noise = draw(count), 0.1 * draw(count, seed=1)
    original = (fp64 + noise).to(dtype)
    assert compare((fp64 - 0.95 * factor * noise).to(dtype), original, fp64).ok
    assert "rmse against float64" in compare((fp64 - 1.05 * factor * noise).to(dtype), original, fp64).reason


def test_one_wrong_element_among_a_million_does_not_hide_in_the_mean() -> None:
    fp64 = draw(1000, 1000)
    original = (fp64 + 1e-3 * draw(1000, 1000, seed=1)).float()
    wrong = (fp64 + 1e-3 * draw(1000, 1000, seed=2)).float()
    assert compare(wrong, original, fp64).ok
    wrong[500, 500] += 0.1
    row = compare(wrong, original, fp64)
    assert row.rmse_vs_fp64 < 2 * row.rmse_original_vs_fp64
    assert "largest error" in row.reason


def test_an_original_that_is_exact_by_luck_leaves_room_for_a_rounding() -> None:
    fp64 = torch.full((4096,), 1024.0, dtype=torch.float64)
    original = fp64.to(torch.bfloat16)
    assert compare(torch.full_like(original, 1028), original, fp64).ok
    assert not compare(torch.full_like(original, 1056), original, fp64).ok


@pytest.mark.parametrize(
    ("actual", "original", "ok"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, INF], [1.0, INF], True),
        ([1.0, 2.0], [1.0, NAN], False),
        ([1.0, NAN], [1.0, 2.0], False),
        ([1.0, -INF], [1.0, INF], False),
        ([1.0, 2.0], [1.0, INF], False),
        ([NAN, 1.0], [1.0, NAN], False),
        ([NAN, NAN], [NAN, NAN], True),
    ],
)
def test_special_values_appear_exactly_where_the_original_has_them(
    actual: list[float], original: list[float], ok: bool
) -> None:
    row = compare(torch.tensor(actual), torch.tensor(original), torch.tensor(original, dtype=torch.float64))
    assert row.ok is ok
    assert bool(row.reason) is not ok


@pytest.mark.parametrize(
    ("actual", "original", "fp64", "ok"),
    [
        (NAN, 0.0, 2.6, True),  # the original squared the largest number, and divided by infinity
        (2.6, INF, 2.6, True),
        (2.6, NAN, 2.6, True),
        (NAN, 2.6, 2.6, False),
        (INF, 2.6, 2.6, False),
        (2.6, NAN, NAN, False),
        (1.0, INF, INF, False),
        (1.0, INF, 1e39, False),  # the dtype does not hold it
        (NAN, 0.0, 1e-46, False),
    ],
)
def test_where_the_original_itself_overflows_at_the_ends_of_the_range_nothing_is_judged(
    actual: float, original: float, fp64: float, ok: bool
) -> None:
    tensors = [torch.tensor([1.0, one], dtype=dtype) for one, dtype in (
        (actual, torch.float32), (original, torch.float32), (fp64, torch.float64),
    )]  # fmt: skip
    assert compare(*tensors, may_overflow=True).ok is ok
    assert not compare(*tensors).ok


@pytest.mark.parametrize(
    ("actual", "fp64", "ok"),
    [
        (INF, INF, True),
        (INF, 1e39, True),
        (2.6, 2.6, False),
        (NAN, INF, True),
        (-INF, INF, False),
        (1.0, INF, False),
        (INF, NAN, False),
        (-INF, -INF, True),
    ],
)
def test_where_the_original_alone_is_nan_infinity_is_right(actual: float, fp64: float, ok: bool) -> None:
    ours, original = (torch.tensor([1.0, one], dtype=torch.float32) for one in (actual, NAN))
    assert compare(ours, original, torch.tensor([1.0, fp64], dtype=torch.float64)).ok is ok


@pytest.mark.parametrize(
    ("actual", "original", "fp64", "ok"),
    [
        (-INF, 0.0, -INF, True),
        (INF, 65504.0, 65530.0, True),  # the nearest number of the dtype
        (INF, 0.0, -INF, False),
        (NAN, 0.0, INF, False),
        (NAN, 65504.0, 65530.0, False),
        (-INF, 65504.0, 65530.0, False),
        (INF, 65504.0, 65510.0, False),
    ],
)
def test_an_infinity_is_right_where_the_reference_is_infinite(
    actual: float, original: float, fp64: float, ok: bool
) -> None:
    ours, others = (torch.tensor([1.0, one], dtype=torch.float16) for one in (actual, original))
    assert compare(ours, others, torch.tensor([1.0, fp64], dtype=torch.float64)).ok is ok


@pytest.mark.parametrize(
    ("actual", "original", "fp64", "ok"),
    [
        (NAN, INF, NAN, True),
        (-INF, INF, NAN, True),
        (NAN, 0.0, NAN, True),
        (INF, 0.0, NAN, True),
        (0.0, INF, NAN, False),
        (0.0, NAN, NAN, False),
        (INF, NAN, NAN, False),
        (NAN, 0.0, INF, False),
    ],
)
def test_cudnn_may_lose_a_nan(actual: float, original: float, fp64: float, ok: bool) -> None:
    ours, others = (torch.tensor([1.0, one], dtype=torch.float16) for one in (actual, original))
    reference = torch.tensor([1.0, fp64], dtype=torch.float64)
    assert compare(ours, others, reference, cudnn=True).ok is ok
    assert not compare(ours, others, reference).ok


def test_the_original_s_own_overflow_is_no_error_of_the_artifact() -> None:
    original = torch.tensor([INF, 1.0], dtype=torch.float16)
    assert compare(original, original, torch.tensor([70000.0, 1.0], dtype=torch.float64)).ok


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_integers_and_booleans_are_equal_or_wrong(dtype: torch.dtype) -> None:
    original = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert compare(original.clone(), original, original).ok
    row = compare((original == 0).to(dtype), original, original)
    assert not row.ok
    assert "4 of 4 elements differ" in row.reason


@pytest.mark.parametrize(
    ("actual", "reason"),
    [(torch.zeros(3), "shape"), (torch.zeros(2, 1), "shape"), (torch.zeros(2).double(), "dtype")],
)
def test_another_shape_or_dtype_is_never_close(actual: torch.Tensor, reason: str) -> None:
    row = compare(actual, torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not row.ok
    assert reason in row.reason
    assert json.loads(json.dumps(row.to_json(), allow_nan=False))["max_abs"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize(("error", "ok"), [(0.0, True), (1e-7, True), (0.1, False)])
def test_where_float64_gives_another_size_the_original_is_the_judge(dtype: torch.dtype, error: float, ok: bool) -> None:
    original = draw(50).to(dtype)
    row = compare(original * (1 + error), original, draw(51, seed=1))
    assert row.ok == ok
    assert row.rmse_original_vs_fp64 == 0


def test_empty_outputs_pass() -> None:
    assert compare(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.float64)).ok

"""The kernels of attention against float64, at sizes, strides and values at which they take other branches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fuseconv.ops
from fuseconv.numerics.tolerance import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def draw(*sizes: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(sizes, device="cuda") * scale).to(dtype)


def expected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """Attention in float64, in which a query that sees no key gets zeros."""
    scores = q.double() @ k.double().transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    unseen = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(unseen, 0), -1).masked_fill(unseen, 0) @ v.double()


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> None:
    scale = q.shape[-1] ** -0.5
    got = fuseconv.ops.causal_attention(q, k, v, scale) if causal else fuseconv.ops.attention(q, k, v, mask, scale)
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    with sdpa_kernel(SDPBackend.MATH):  # the kernels refuse some of the masks
        original = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
    row = compare(got, original, expected(q, k, v, mask, scale, causal), fp64_only=True)
    assert row.ok, row
    assert got.transpose(-2, -3).is_contiguous()


SIZES = [
    (1, 1, 1, 1, 8, 8),
    (2, 3, 64, 257, 64, 64),
    (2, 3, 128, 384, 64, 64),
    (1, 2, 127, 385, 64, 64),
    (3, 2, 129, 300, 32, 32),
    (1, 5, 300, 511, 40, 64),
    (2, 2, 200, 1024, 128, 128),
    (1, 3, 65, 513, 72, 72),
    (1, 2, 500, 640, 128, 48),
    (1, 2, 500, 640, 48, 128),
    (4, 12, 1, 2000, 64, 64),
    (1, 1, 3000, 3000, 64, 64),
]


@DTYPES
@pytest.mark.parametrize(("batch", "heads", "queries", "keys", "width", "out"), SIZES)
def test_sizes(dtype: torch.dtype, batch: int, heads: int, queries: int, keys: int, width: int, out: int) -> None:
    q = draw(batch, heads, queries, width, dtype=dtype)
    k = draw(batch, heads, keys, width, dtype=dtype)
    v = draw(batch, heads, keys, out, dtype=dtype)
    check(q, k, v)
    for shape in [(queries, keys), (batch, 1, 1, keys), (heads, queries, 1)]:
        mask = draw(*shape, dtype=dtype)
        if shape[-1] == keys:
            mask[..., torch.rand(shape[-1], device="cuda") < 0.3] = -math.inf
        check(q, k, v, mask)


@DTYPES
@pytest.mark.parametrize("width", [16, 64, 80, 128])
@pytest.mark.parametrize(("heads", "shared"), [(3, 3), (4, 1), (6, 2)])
@pytest.mark.parametrize("positions", [1, 2, 63, 64, 65, 128, 129, 200, 256, 257, 1000])
def test_causal(dtype: torch.dtype, width: int, heads: int, shared: int, positions: int) -> None:
    q = draw(2, heads, positions, width, dtype=dtype)
    k, v = (draw(2, shared, positions, width, dtype=dtype) for _ in range(2))
    check(q, k, v, causal=True)


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_views(dtype: torch.dtype, causal: bool) -> None:
    """Slices of one product, heads behind positions, repeated heads, and heads before the batch."""
    merged = draw(2, 300, 3, 4, 64, dtype=dtype).permute(2, 0, 3, 1, 4)
    check(*merged, causal=causal)
    wide = draw(2, 4, 300, 3 * 64, dtype=dtype)
    check(*wide.chunk(3, -1), causal=causal)
    one = draw(2, 1, 300, 64, dtype=dtype).expand(2, 4, 300, 64)
    check(merged[0], one, one, causal=causal)
    q, k, v = (draw(4, 300, 2, 64, dtype=dtype).permute(2, 0, 1, 3) for _ in range(3))
    check(q, k, v, causal=causal)
    check(q[0], k[0], v[0], causal=causal)
    check(q[:, None], k[:, None], v[:, None], causal=causal)
    check(q.transpose(2, 3).contiguous().transpose(2, 3), k, v, causal=causal)  # rows that are not dense
    check(draw(2, 4, 301, 65, dtype=dtype)[:, :, 1:, 1:], k, v, causal=causal)  # rows that are not aligned


@DTYPES
@pytest.mark.parametrize("keys", [60, 130, 300])
def test_rows_that_begin_anywhere_are_copied(dtype: torch.dtype, keys: int) -> None:
    """The same kernel then computes them, to the last bit."""
    wide = draw(2, keys, 4 + 3 * 4 * 32, dtype=dtype)
    q, k, v = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in wide[..., 4:].chunk(3, -1))
    mask = draw(keys, keys, dtype=dtype)
    got, expected = (
        fuseconv.ops.attention(*operands, mask, 0.125)
        for operands in ((q, k, v), (q.contiguous(), k.contiguous(), v.contiguous()))
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    check(q, k, v)


@DTYPES
@pytest.mark.parametrize("size", [260, 300, 380], ids=["tiles-of-96", "tiles-of-112", "tiles-of-128"])
def test_masks_of_any_strides(dtype: torch.dtype, size: int) -> None:
    more = size + 4
    q, k, v = (draw(2, 3, size, 64, dtype=dtype) for _ in range(3))
    check(q, k, v, draw(size, size, dtype=dtype).T)
    check(q, k, v, draw(size, 2 * size, dtype=dtype)[:, ::2])
    check(q, k, v, draw(2, 1, size, size + 1, dtype=dtype)[..., 1:])
    check(q, k, v, draw(2, 1, size, more, dtype=dtype)[..., :size])
    check(q, k, v, draw(3, size, more, dtype=dtype)[..., :size])
    check(q, k, v, draw(2, 1, 1, more, dtype=dtype)[..., :size])
    check(q[:, :, :1], k, v, draw(2, 1, 1, more, dtype=dtype)[..., :size])
    check(q, k, v, draw(1, 1, dtype=dtype).expand(size, size))
    check(q, k, v, draw(2, 3, size, size, dtype=dtype))
    odd = draw(2, 3, size - 1, 64, dtype=dtype)
    check(q, odd, odd, draw(2, 1, size, size - 1, dtype=dtype))
    check(q, odd, odd, draw(2, 1, size, more, dtype=dtype)[..., : size - 1])
    wide = draw(2, 3, size - 1, 128, dtype=dtype)
    check(wide, wide, wide, draw(2, 3, size - 1, more, dtype=dtype)[..., : size - 1])


@DTYPES
def test_values_that_are_not_numbers(dtype: torch.dtype) -> None:
    q, k, v = (draw(1, 2, 300, 64, dtype=dtype) for _ in range(3))
    mask = torch.zeros(300, 300, dtype=dtype, device="cuda")
    mask[:, 290:] = mask[7] = mask[200, :140] = -math.inf
    check(q, k, v, mask)
    v[0, 0, 5, 3] = math.inf
    v[0, 1, 299, 0] = math.nan
    q[0, 0, 17] = math.nan
    check(q, k, v)


@DTYPES
@pytest.mark.parametrize("keys", [40, 300])
@pytest.mark.parametrize("number", [-1e4, -6e4, -1e6, -3e9, -1e12, -1e30, None])
def test_rows_that_are_masked_by_a_number(dtype: torch.dtype, keys: int, number: float | None) -> None:
    """The number is in a whole row of the mask, or in all of a row but one tile. None is the lowest number.

    f16 has no numbers below -65504, and -inf stands for them.
    """
    q, k, v = (draw(2, 2, keys, 64, dtype=dtype) for _ in range(3))
    mask = torch.zeros(2, 1, keys, keys, dtype=dtype, device="cuda")
    low = torch.tensor(torch.finfo(dtype).min if number is None else number).to(dtype)
    mask[0] = mask[1, :, 3:30] = mask[1, :, 35:, : keys // 2] = low
    check(q, k, v, mask)
    check(q, k, v, mask[:, :, :1])


@DTYPES
@pytest.mark.parametrize("keys", [40, 300])
def test_large_scores(dtype: torch.dtype, keys: int) -> None:
    q, k, v = (draw(2, 2, keys, 64, dtype=dtype) for _ in range(3))
    large = 1e12 if dtype == torch.bfloat16 else 30.0
    check(q * large, k * large, v)


@DTYPES
def test_what_lies_behind_an_operand_is_not_read(dtype: torch.dtype) -> None:
    """Operands are slices of tensors that are otherwise NaN, and the result's memory was NaN before."""

    def inside(*sizes: int) -> Tensor:
        room = torch.full([size + 8 for size in sizes], math.nan, dtype=dtype, device="cuda")
        part = room[tuple(slice(0, size) for size in sizes)]
        part.copy_(draw(*sizes, dtype=dtype))
        return part

    for queries, keys, width in ((300, 300, 64), (70, 400, 40), (129, 257, 72)):
        q, k, v = inside(2, 3, queries, width), inside(2, 3, keys, width), inside(2, 3, keys, width)
        poison: Any = torch.full((2, queries, 3, width), math.nan, dtype=dtype, device="cuda")
        del poison
        check(q, k, v)
        check(q, k, v, inside(2, 3, queries, keys))

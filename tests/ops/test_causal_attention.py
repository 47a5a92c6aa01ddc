"""causal_attention: what PyTorch's causal attention computes, and nothing of later positions."""

import pytest
import torch
from support.op_table import DEVICES
from torch import Tensor
from torch.nn import functional

from fuseconv import ops
from fuseconv.ops.description import DTYPES
from fuseconv.ops.sampling import Draw


def drawn(device: str, dtype: torch.dtype, groups: int, positions: int = 70) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of six heads, and keys and values of `groups` heads."""
    draw = Draw(device, dtype)
    return draw(2, 6, positions, 16), draw(2, groups, positions, 16), draw(2, groups, positions, 16)


@pytest.mark.parametrize("groups", [6, 3, 2, 1])
@pytest.mark.parametrize("device", DEVICES)
def test_is_pytorchs_causal_attention(device: str, groups: int) -> None:
    q, k, v = drawn(device, torch.float64, groups)
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25, enable_gqa=True)
    torch.testing.assert_close(ops.causal_attention(q, k, v, 0.25), expected)


@pytest.mark.parametrize("positions", [70, 72, 3000], ids=["odd", "dense", "long"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_later_keys_change_nothing(device: str, dtype: torch.dtype, positions: int) -> None:
    q, k, v = drawn(device, dtype, 2, positions)
    result = ops.causal_attention(q, k, v, 0.25)
    seen = positions // 2
    k[:, :, seen:] = float("nan")  # v is finite, because 0 * NaN is NaN
    v[:, :, seen:] = 1e3
    changed = ops.causal_attention(q, k, v, 0.25)
    assert torch.equal(changed[:, :, :seen], result[:, :, :seen])
    assert changed[:, :, seen:].isnan().all()


@pytest.mark.parametrize("positions", [9, 16], ids=["odd", "dense"])
@pytest.mark.parametrize("device", DEVICES)
def test_queries_that_see_nothing_get_zeros(device: str, positions: int) -> None:
    """The scores of the first keys overflow to -inf."""
    q, k, v = (tensor.abs() + 1 for tensor in drawn(device, torch.float32, 2, positions))
    k[:, :, :3] = -1e38
    args = q, k, v, 1.0
    result = ops.causal_attention(*args)
    assert (result[:, :, :3] == 0).all()
    torch.testing.assert_close(result, ops.causal_attention.reference(*args))

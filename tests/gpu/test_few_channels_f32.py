"""Convolutions in f32 of images with few channels are as exact as PyTorch's, which does not use TF32 for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.ops.convolution_kernels import FEW_CHANNELS
from fuseconv.ops.layout import channels_last

pytestmark = pytest.mark.gpu


def drawn(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


@pytest.mark.parametrize("channels", range(1, FEW_CHANNELS + 1))
@pytest.mark.parametrize(
    ("out", "kernel", "stride", "padding", "dilation"),
    [
        (32, 3, 1, 1, 1),
        (64, 7, 2, 3, 1),
        (8, 1, 1, 0, 1),
        (72, 5, 3, 2, 2),
        (16, 2, 1, 0, 3),
        (64, 11, 4, 2, 1),  # more shared memory than half of an SM has
        (6, 3, 1, 1, 1),  # left to PyTorch
    ],
)
@pytest.mark.parametrize("in_order", [False, True], ids=["last", "first"])
def test_few_channels(
    channels: int, out: int, kernel: int, stride: int, padding: int, dilation: int, in_order: bool
) -> None:
    x, weight = drawn(channels, 2, channels, 53, 47), drawn(2, out, channels, kernel, kernel)
    bias = drawn(3, out)
    numbers = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)

    def computed(dtype: torch.dtype) -> Tensor:
        return F.conv2d(x.to(dtype), weight.to(dtype), bias.to(dtype), stride, padding, dilation)

    fp64, eager = computed(torch.float64), computed(torch.float32)
    for act, act_of in (("relu", F.relu), ("gelu", F.gelu)):
        y = ops.conv_act(x if in_order else channels_last(x), channels_last(weight), bias, None, *numbers, act)
        # Images of one channel, and 1x1 weights, have both layouts.
        last = channels > 1 and not (in_order and kernel == 1)
        assert y.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        expected = act_of(fp64)
        assert (y - expected).abs().max() <= 2 * (act_of(eager) - expected).abs().max()


@pytest.mark.parametrize("residual_first", [True, False])
def test_residuals(residual_first: bool) -> None:
    x, weight, residual = drawn(1, 2, 3, 20, 20), drawn(2, 24, 3, 3, 3), channels_last(drawn(3, 2, 24, 20, 20))
    rest: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, "tanh", residual_first)
    y = ops.conv_act(x, channels_last(weight), None, residual, *rest)
    z = F.conv2d(x.double(), weight.double(), padding=1)
    expected = torch.tanh(z + residual) if residual_first else torch.tanh(z) + residual
    assert (y - expected).abs().max() <= 1e-5


def test_signals_of_one_dim() -> None:
    x, weight = drawn(1, 3, 2, 1001), drawn(2, 40, 2, 10)
    y = ops.conv_act(x, channels_last(weight), None, None, [5], [0], [1], False, [0], 1, "none")
    expected = F.conv1d(x.double(), weight.double(), stride=5)
    assert (y - expected).abs().max() <= 2 * (F.conv1d(x, weight, stride=5) - expected).abs().max()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, torch.finfo(torch.float32).max])
@pytest.mark.parametrize("where", ["x", "weight"])
def test_numbers_without_a_second_part(value: float, where: str) -> None:
    """The difference of an infinity and its first part is NaN, and the largest numbers round to infinity."""
    x, weight = drawn(1, 1, 3, 12, 12).abs() * 0.1, drawn(2, 16, 3, 3, 3).abs() * 0.1
    if where == "x":
        x[0, 1, 5, 5] = value
    else:
        weight[3, 1, 1, 1] = value
    y = ops.conv_act(channels_last(x), channels_last(weight), None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    expected = F.conv2d(x.double(), weight.double()).float()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert (~expected.isfinite()).any() == (not math.isfinite(value))

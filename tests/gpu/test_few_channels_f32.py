"""Convolutions in f32 of images with few channels are as exact as PyTorch's, which does not use TF32 for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.ops.conv_act import FEW_CHANNELS
from fuseconv.ops.layout import channels_last

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("channels", range(1, FEW_CHANNELS + 1))
def test_few_channels(channels: int) -> None:
    generator = torch.Generator("cuda").manual_seed(channels)
    x = torch.randn(2, channels, 33, 31, device="cuda", generator=generator)
    weight, bias = torch.randn(32, channels, 3, 3, device="cuda", generator=generator), torch.zeros(32, device="cuda")
    numbers = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    fp64 = F.conv2d(x.double(), weight.double(), padding=1).relu()
    eager = F.conv2d(x, weight, padding=1).relu()
    y = ops.conv_act(channels_last(x), channels_last(weight), bias, None, *numbers, "relu")
    # Images of one channel have both layouts.
    assert y.is_contiguous(memory_format=torch.channels_last if channels > 1 else torch.contiguous_format)
    assert (y.double() - fp64).abs().max() <= 2 * (eager.double() - fp64).abs().max()

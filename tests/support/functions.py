"""Modules with one function, and the comparison of their results on targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor
from torch.nn import functional as F

IMAGES = "x=f32[batch:1..8,4,height:4..32:4,width:8..64:8]"


class Function(torch.nn.Module):
    """A module of one function, with some weights for it to use."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(8, 12)
        self.norm = torch.nn.LayerNorm(8)
        self.embedding = torch.nn.Embedding(10, 8, padding_idx=0)
        self.conv = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.batch_norm = torch.nn.BatchNorm2d(4)
        self.register_buffer("table", torch.arange(32.0), persistent=False)

    def forward(self, *inputs: Tensor) -> tuple[object, ...]:
        result = self.function(self, *inputs)
        return result if isinstance(result, tuple) else (result,)


def down_and_up(m: Function, x: Tensor) -> Tensor:
    """As a U-Net: what was halved twice and doubled twice has the size it had, if that was a multiple of four."""
    half = F.avg_pool2d(x, 2)
    return x + F.interpolate(half + F.interpolate(F.avg_pool2d(half, 2), scale_factor=2.0), scale_factor=2.0)


def windows(m: Function, x: Tensor) -> Tensor:
    """As Swin: attention within windows of four by eight."""
    batch, channels, height, width = x.shape
    split = x.view(batch, channels, height // 4, 4, width // 8, 8).permute(0, 2, 4, 3, 5, 1).reshape(-1, 32, channels)
    mixed = F.scaled_dot_product_attention(split, split, split)
    back = mixed.view(batch, height // 4, width // 8, 4, 8, channels).permute(0, 5, 1, 3, 2, 4)
    return back.reshape(batch, channels, height, width)


def equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def onnx_model(bundle: Path) -> onnx.ModelProto:
    return onnx.load(bundle / "model.onnx", load_external_data=False)

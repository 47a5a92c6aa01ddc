"""MobileNetV3-Large (arXiv:1905.02244): inverted residuals with squeeze-and-excitation and hard-swish."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Act = Callable[[], nn.Module]

BLOCKS: tuple[tuple[int, int, int, bool, Act, int], ...] = (
    (3, 16, 16, False, nn.ReLU, 1),
    (3, 64, 24, False, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2),
    (5, 120, 40, True, nn.ReLU, 1),
    (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2),
    (3, 200, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 480, 112, True, nn.Hardswish, 1),
    (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2),
    (5, 960, 160, True, nn.Hardswish, 1),
    (5, 960, 160, True, nn.Hardswish, 1),
)
"""Table 1 of the paper: kernel, inner channels, channels, whether it squeezes, activation, stride."""


def convolution(k: int, n: int, size: int, act: Act | None = None, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Returns a convolution, its batch norm and an activation, if there is one."""
    padding = size // 2
    layers = [nn.Conv2d(k, n, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(n, eps=1e-3)]
    return nn.Sequential(*layers, *([act()] if act else []))


class SqueezeAndExcitation(nn.Module):
    """Each channel times a gate computed from the means of all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, (channels // 4 + 4) // 8 * 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(), nn.Conv2d(inner, channels, 1)
        )
        self.act = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Returns x, each channel scaled."""
        return x * self.act(self.gate(x))


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one, and a 1x1 convolution to few."""

    def __init__(self, channels: int, size: int, inner: int, n: int, squeezes: bool, act: Act, stride: int) -> None:
        super().__init__()
        self.adds = stride == 1 and channels == n
        self.layers = nn.Sequential(
            convolution(channels, inner, 1, act) if inner != channels else nn.Identity(),
            convolution(inner, inner, size, act, stride, inner),
            SqueezeAndExcitation(inner) if squeezes else nn.Identity(),
            convolution(inner, n, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output, with x added where the shapes are equal."""
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class MobileNetV3Large(nn.Module):
    """The classifier of 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        channels = 16
        layers: list[nn.Module] = [convolution(3, channels, 3, nn.Hardswish, 2)]
        for size, inner, n, squeezes, act, stride in BLOCKS:
            layers.append(InvertedResidual(channels, size, inner, n, squeezes, act, stride))
            channels = n
        layers.append(convolution(channels, 960, 1, nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, height, width]."""
        return (self.head(torch.flatten(self.pool(self.features(x)), 1)),)

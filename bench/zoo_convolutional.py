"""Convolutional models of one class each: grouped, dense, shuffled and isotropic ones, and one that enlarges images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo_parts import fewer


def _normed(k: int, n: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(k, n, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(n)]


class Bottleneck(nn.Module):
    """ResNeXt's block (arXiv:1611.05431): a grouped 3x3 convolution between two 1x1 ones."""

    def __init__(self, k: int, inner: int, n: int, stride: int) -> None:
        super().__init__()
        first = [*_normed(k, inner, 1), nn.ReLU(inplace=True)]
        second = [*_normed(inner, inner, 3, stride, 32), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*first, *second, *_normed(inner, n, 1))
        self.across = nn.Sequential(*_normed(k, n, 1, stride)) if k != n or stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, n, height / stride, width / stride]."""
        return torch.relu_(self.layers(x) + self.across(x))


class ResNeXt(nn.Module):
    """ResNeXt-50 32x4d, a classifier of 1000 classes."""

    DEPTHS, WIDTHS = (3, 4, 6, 3), (256, 512, 1024, 2048)

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        blocks, k = [], 64
        for at, (depth, n) in enumerate(zip(fewer(self.DEPTHS, layers), self.WIDTHS, strict=True)):
            for number in range(depth):
                blocks.append(Bottleneck(k, n // 2, n, 2 if at and not number else 1))
                k = n
        self.stem = nn.Sequential(*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(k, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, height, width]."""
        return (self.head(self.blocks(self.stem(x)).mean((2, 3))),)


class DenseLayer(nn.Module):
    """DenseNet's layer (arXiv:1608.06993): norm and activation before each convolution, the output joined to x."""

    def __init__(self, k: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        first = nn.BatchNorm2d(k), nn.ReLU(inplace=True), nn.Conv2d(k, inner, 1, bias=False)
        second = nn.BatchNorm2d(inner), nn.ReLU(inplace=True), nn.Conv2d(inner, growth, 3, padding=1, bias=False)
        self.layers = nn.Sequential(*first, *second)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, k + growth, height, width]."""
        return torch.cat([x, self.layers(x)], 1)


class DenseNet(nn.Module):
    """DenseNet-121, a classifier of 1000 classes."""

    DEPTHS, GROWTH = (6, 12, 24, 16), 32

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        width = 64
        parts: list[nn.Module] = [*_normed(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        for at, depth in enumerate(fewer(self.DEPTHS, layers)):
            if at:
                parts += nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width // 2, 1, bias=False)
                parts.append(nn.AvgPool2d(2))
                width //= 2
            for _ in range(depth):
                parts.append(DenseLayer(width, self.GROWTH))
                width += self.GROWTH
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, height, width]."""
        features = torch.relu(self.features(x))
        return (self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(features, 1), 1)),)


class ShuffleUnit(nn.Module):
    """ShuffleNet V2's unit (arXiv:1807.11164): one half of the channels passes; then both are interleaved."""

    def __init__(self, k: int, n: int, stride: int) -> None:
        super().__init__()
        half = n // 2
        self.halves = stride == 1
        inner = half if self.halves else k
        self.side = nn.Sequential(
            *([] if self.halves else [*_normed(k, k, 3, stride, k), *_normed(k, half, 1), nn.ReLU(inplace=True)])
        )
        first, last = (
            [*_normed(inner, half, 1), nn.ReLU(inplace=True)],
            [*_normed(half, half, 1), nn.ReLU(inplace=True)],
        )
        self.main = nn.Sequential(*first, *_normed(half, half, 3, stride, half), *last)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, n, height / stride, width / stride]."""
        side, main = x.chunk(2, 1) if self.halves else (x, x)
        joined = torch.cat([self.side(side), self.main(main)], 1)
        return joined.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class ShuffleNet(nn.Module):
    """ShuffleNet V2 1.0x, a classifier of 1000 classes."""

    DEPTHS, WIDTHS = (4, 8, 4), (116, 232, 464)

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        width = 24
        parts: list[nn.Module] = [*_normed(3, width, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        for depth, n in zip(fewer(self.DEPTHS, layers), self.WIDTHS, strict=True):
            parts.append(ShuffleUnit(width, n, 2))
            parts += (ShuffleUnit(n, n, 1) for _ in range(1, depth))
            width = n
        self.features = nn.Sequential(*parts, *_normed(width, 1024, 1), nn.ReLU(inplace=True))
        self.head = nn.Linear(1024, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, height, width]."""
        return (self.head(self.features(x).mean([2, 3])),)


class Plus(nn.Module):
    """Layers whose input is added to their output, times a factor."""

    def __init__(self, *layers: nn.Module, factor: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Returns x + factor * layers(x)."""
        y: Tensor = self.layers(x)
        return x + (y if self.factor == 1 else y * self.factor)


class ConvMixer(nn.Module):
    """ConvMixer-768/32 (arXiv:2201.09792), whose batch norms follow the activations, a classifier of 1000 classes."""

    WIDTH, DEPTH = 768, 32

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        width = self.WIDTH

        def acted(convolution: nn.Module) -> list[nn.Module]:
            return [convolution, nn.ReLU(), nn.BatchNorm2d(width)]

        parts = acted(nn.Conv2d(3, width, 7, 7))
        for _ in range(fewer(self.DEPTH, layers)):
            parts += (
                Plus(*acted(nn.Conv2d(width, width, 7, groups=width, padding=3))),
                *acted(nn.Conv2d(width, width, 1)),
            )
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, height, width]."""
        return (self.head(self.features(x).mean((-1, -2))),)


class Enlarger(nn.Module):
    """EDSR's baseline (arXiv:1707.02921): images of four times the height and width."""

    WIDTH, DEPTH = 64, 16

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        width = self.WIDTH

        def three(k: int, n: int) -> nn.Module:
            return nn.Conv2d(k, n, 3, padding=1)

        def block() -> nn.Module:
            return Plus(three(width, width), nn.ReLU(inplace=True), three(width, width), factor=0.1)

        def twice() -> list[nn.Module]:
            return [three(width, 4 * width), nn.PixelShuffle(2)]

        self.first = three(3, width)
        self.body = Plus(*(block() for _ in range(fewer(self.DEPTH, layers))), three(width, width))
        self.last = nn.Sequential(*twice(), *twice(), three(width, 3))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns images [batch, 3, 4 height, 4 width] of images [batch, 3, height, width]."""
        return (self.last(self.body(self.first(x))),)

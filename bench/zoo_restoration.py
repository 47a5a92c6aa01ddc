"""Models of images that were written after the rules and were not tuned for: restoration, detection and generation."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class ChannelAttention(nn.Module):
    """A residual block of RCAN (arXiv:1807.02758): two convolutions, scaled by the means of their channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_same(channels, channels), nn.ReLU(), _same(channels, channels))
        narrow = channels // 16
        self.scale = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), nn.ReLU()),
            *(nn.Conv2d(narrow, channels, 1), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of the image and its scaled convolutions."""
        y = self.body(x)
        return x + y * self.scale(y)


class Rcan(nn.Module):
    """RCAN with one group of blocks, which doubles the size of an image."""

    CHANNELS, BLOCKS = 64, 12

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.CHANNELS
        self.head = _same(3, n)
        self.body = nn.Sequential(*(ChannelAttention(n) for _ in range(fewer(self.BLOCKS, layers))), _same(n, n))
        self.tail = nn.Sequential(_same(n, 4 * n), nn.PixelShuffle(2), _same(n, 3))

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the image [batch, 3, 2 * height, 2 * width]."""
        h = self.head(image - 0.5)
        return (self.tail(h + self.body(h)) + 0.5,)


class UNet3d(nn.Module):
    """A U-Net of volumes with instance norms, as nnU-Net's (arXiv:1809.10486)."""

    CHANNELS = 32

    def __init__(self, layers: int | None = None) -> None:  # noqa: ARG002 - it has one block in a stage
        super().__init__()
        n = self.CHANNELS
        self.first = _volume(1, n)
        self.second = nn.Sequential(_volume(n, 2 * n, 2), _volume(2 * n, 2 * n))
        self.third = nn.Sequential(_volume(2 * n, 4 * n, 2), _volume(4 * n, 4 * n))
        self.up_third, self.up_second = nn.ConvTranspose3d(4 * n, 2 * n, 2, 2), nn.ConvTranspose3d(2 * n, n, 2, 2)
        self.joined_second, self.joined_first = _volume(4 * n, 2 * n), _volume(2 * n, n)
        self.classes = nn.Conv3d(n, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the classes of the voxels, [batch, 3, depth, height, width]."""
        first = self.first(x)
        second = self.second(first)
        y = self.joined_second(torch.cat([self.up_third(self.third(second)), second], 1))
        return (self.classes(self.joined_first(torch.cat([self.up_second(y), first], 1))),)


class Split(nn.Module):
    """C2f of YOLOv8: residual blocks on half of the channels, whose results are all concatenated."""

    def __init__(self, channels: int, blocks: int = 2) -> None:
        super().__init__()
        half = channels // 2
        self.into = _silu(channels, channels, 1)
        self.blocks = nn.ModuleList(nn.Sequential(_silu(half, half), _silu(half, half)) for _ in range(blocks))
        self.out = _silu(channels + blocks * half, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns an image of the same shape."""
        parts = [*self.into(x).chunk(2, 1)]
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.out(torch.cat(parts, 1))


class Pools(nn.Module):
    """SPPF of YOLOv5: three max pools in a row, concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.into, self.out = _silu(channels, channels // 2, 1), _silu(2 * channels, channels, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Returns an image of the same shape."""
        return self.out(torch.cat([*self._pooled(self.into(x))], 1))

    def _pooled(self, x: Tensor) -> Iterator[Tensor]:
        for _ in range(3):
            yield x
            x = self.pool(x)
        yield x


class Yolo(nn.Module):
    """A detector of the kind of YOLOv8, with two scales."""

    CHANNELS, VALUES = 32, 84

    def __init__(self, layers: int | None = None) -> None:  # noqa: ARG002 - its stages are one block
        super().__init__()
        n = self.CHANNELS
        self.stem = nn.Sequential(_silu(3, n, 3, 2), _silu(n, 2 * n, 3, 2), Split(2 * n))
        self.fine = nn.Sequential(_silu(2 * n, 4 * n, 3, 2), Split(4 * n))
        self.coarse = nn.Sequential(_silu(4 * n, 8 * n, 3, 2), Split(8 * n), Pools(8 * n))
        self.lateral = _silu(8 * n, 4 * n, 1)
        self.joined = nn.Sequential(_silu(8 * n, 4 * n), Split(4 * n))
        self.heads = nn.ModuleList([nn.Conv2d(4 * n, self.VALUES, 1), nn.Conv2d(8 * n, self.VALUES, 1)])

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the values of the boxes, [batch, 84, boxes]."""
        fine = self.fine(self.stem(image))
        coarse = self.coarse(fine)
        fine = self.joined(torch.cat([functional.interpolate(self.lateral(coarse), scale_factor=2.0), fine], 1))
        boxes = [head(scale).flatten(2) for head, scale in zip(self.heads, (fine, coarse), strict=True)]
        return (torch.cat(boxes, 2).sigmoid(),)


class Modulated(nn.Module):
    """A convolution of StyleGAN2 (arXiv:1912.04958), whose weight is scaled for each image: a group for each."""

    def __init__(self, channels: int, features: int, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, features, channels, 3, 3) / math.sqrt(9 * channels))
        self.style, self.bias = nn.Linear(style, channels), nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Returns the activations [batch, features, height, width]."""
        batch, channels, height, width = x.shape
        weight = self.weight * (self.style(style).view(batch, 1, channels, 1, 1) + 1)
        weight = weight * torch.rsqrt((weight**2).sum([2, 3, 4], keepdim=True) + 1e-5)
        images = x.reshape(1, batch * channels, height, width)
        y = functional.conv2d(images, weight.flatten(0, 1), padding=1, groups=batch).view(batch, -1, height, width)
        return functional.leaky_relu(y + self.bias[None, :, None, None], 0.2) * math.sqrt(2)


class StyleGan(nn.Module):
    """The mapping and four layers of StyleGAN2's generator."""

    STYLE, CHANNELS = 512, (256, 256, 256, 128, 64)

    def __init__(self, layers: int | None = None) -> None:  # noqa: ARG002 - its layers have their own sizes
        super().__init__()
        n = self.STYLE
        self.mapping = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(n, n), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, self.CHANNELS[0], 8, 8))
        pairs = zip(self.CHANNELS[:-1], self.CHANNELS[1:], strict=True)
        self.layers = nn.ModuleList(Modulated(channels, features, n) for channels, features in pairs)
        self.image = nn.Conv2d(self.CHANNELS[-1], 3, 1)

    def forward(self, noise: Tensor) -> tuple[Tensor]:
        """Returns images [batch, 3, 128, 128]."""
        style = self.mapping(noise)
        x = self.start.expand(noise.shape[0], -1, -1, -1)
        for layer in self.layers:
            x = layer(functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), style)
        return (self.image(x),)


def _same(channels: int, features: int) -> nn.Module:
    return nn.Conv2d(channels, features, 3, 1, 1)


def _volume(channels: int, features: int, stride: int = 1) -> nn.Module:
    norm = nn.InstanceNorm3d(features, affine=True)
    return nn.Sequential(nn.Conv3d(channels, features, 3, stride, 1), norm, nn.LeakyReLU(0.01))


def _silu(channels: int, features: int, size: int = 3, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(channels, features, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(features), nn.SiLU())

"""Models of images that scale or mix channels, which were written after the rules and not tuned for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class ChannelNorm(nn.Module):
    """A layer norm of the channels of images, written out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the shape of x, [batch, channels, height, width]."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight.view(1, -1, 1, 1) * ((x - mean) / (variance + 1e-6).sqrt()) + self.bias.view(1, -1, 1, 1)


class NafBlock(nn.Module):
    """A block of NAFNet (arXiv:2204.04676): one half of the channels multiplies the other, without activations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        n = channels
        self.norm, self.wide, self.narrow = ChannelNorm(n), nn.Conv2d(n, 2 * n, 1), nn.Conv2d(n, n, 1)
        self.local = nn.Conv2d(2 * n, 2 * n, 3, 1, 1, groups=2 * n)
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, n, 1))
        self.mlp_norm, self.up, self.down = ChannelNorm(n), nn.Conv2d(n, 2 * n, 1), nn.Conv2d(n, n, 1)
        self.beta, self.gamma = (nn.Parameter(torch.full((1, n, 1, 1), 0.1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the shape of x, [batch, channels, height, width]."""
        y = _product_of_halves(self.local(self.wide(self.norm(x))))
        x = x + self.narrow(y * self.scale(y)) * self.beta
        return x + self.down(_product_of_halves(self.up(self.mlp_norm(x)))) * self.gamma


class NafNet(nn.Module):
    """NAFNet of three levels, which restores an image."""

    CHANNELS, BLOCKS = 32, (2, 2, 4)

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.CHANNELS
        counts = fewer(self.BLOCKS, layers)
        self.first, self.last = nn.Conv2d(3, n, 3, 1, 1), nn.Conv2d(n, 3, 3, 1, 1)
        blocks = [nn.Sequential(*(NafBlock(n << i) for _ in range(count))) for i, count in enumerate(counts)]
        self.high, self.middle, self.low = blocks
        self.down, self.down_again = nn.Conv2d(n, 2 * n, 2, 2), nn.Conv2d(2 * n, 4 * n, 2, 2)
        self.up_again, self.up = _enlarged(4 * n), _enlarged(2 * n)
        self.joined_again, self.joined = NafBlock(2 * n), NafBlock(n)

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the image [batch, 3, height, width]."""
        high = self.high(self.first(image))
        middle = self.middle(self.down(high))
        y = self.joined_again(self.up_again(self.low(self.down_again(middle))) + middle)
        return (self.last(self.joined(self.up(y) + high)) + image,)


class Transposed(nn.Module):
    """A block of Restormer (arXiv:2111.09881): attention between channels, and a gated feed-forward of convolutions."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        n, wide = channels, int(channels * 2.66)
        self.norm, self.mlp_norm = nn.LayerNorm(n), nn.LayerNorm(n)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = nn.Sequential(nn.Conv2d(n, 3 * n, 1, bias=False), _depthwise(3 * n))
        self.out = nn.Conv2d(n, n, 1, bias=False)
        self.up = nn.Sequential(nn.Conv2d(n, 2 * wide, 1, bias=False), _depthwise(2 * wide))
        self.down = nn.Conv2d(wide, n, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the shape of x, [batch, channels, height, width]."""
        q, k, v = (one.flatten(2) for one in self.qkv(_of_channels(self.norm, x)).chunk(3, 1))
        heads = len(self.temperature)
        q, k, v = (one.reshape(len(one), heads, -1, one.shape[-1]) for one in (q, k, v))
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        weights = ((q @ k.transpose(-1, -2)) * self.temperature).softmax(-1)
        x = x + self.out((weights @ v).reshape(x.shape))
        gate, up = self.up(_of_channels(self.mlp_norm, x)).chunk(2, 1)
        return x + self.down(functional.gelu(gate) * up)


class Restormer(nn.Module):
    """Restormer of two levels, which restores an image."""

    CHANNELS, BLOCKS = 48, (2, 3, 1)

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.CHANNELS
        high, low, last = fewer(self.BLOCKS, layers)
        self.first, self.last = nn.Conv2d(3, n, 3, 1, 1), nn.Conv2d(n, 3, 3, 1, 1)
        self.high = nn.Sequential(*(Transposed(n, 1) for _ in range(high)))
        self.low = nn.Sequential(*(Transposed(2 * n, 2) for _ in range(low)))
        self.joined = nn.Sequential(*(Transposed(n, 1) for _ in range(last)))
        self.down = nn.Sequential(nn.Conv2d(n, n // 2, 3, 1, 1, bias=False), nn.PixelUnshuffle(2))
        self.up = nn.Sequential(nn.Conv2d(2 * n, 4 * n, 3, 1, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the image [batch, 3, height, width]."""
        high = self.high(self.first(image))
        return (self.last(self.joined(self.up(self.low(self.down(high))) + high)) + image,)


def _product_of_halves(x: Tensor) -> Tensor:
    one, other = x.chunk(2, 1)
    return one * other


def _enlarged(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 2 * channels, 1, bias=False), nn.PixelShuffle(2))


def _depthwise(channels: int) -> nn.Module:
    return nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False)


def _of_channels(norm: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = norm(x.flatten(2).transpose(1, 2))
    return y.transpose(1, 2).reshape(x.shape)

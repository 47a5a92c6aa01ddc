"""Models that mix tokens in other ways than attention between all of them; written after the rules, not tuned for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class CrossCovariance(nn.Module):
    """A block of XCiT (arXiv:2106.09681): attention between channels, depthwise convolutions and an MLP."""

    HEADS = 8

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.gammas = nn.ParameterList(nn.Parameter(torch.full((width,), 0.1)) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.ones(self.HEADS, 1, 1))
        self.local = nn.Sequential(
            *(nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.GELU(), nn.BatchNorm2d(width)),
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
        )
        self.mlp = _mlp(width)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Returns tokens of the shape of x, [batch, height * width, channels]."""
        batch, tokens, channels = x.shape
        qkv = self.qkv(self.norms[0](x)).reshape(batch, tokens, 3, self.HEADS, channels // self.HEADS)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        weights = ((q @ k.transpose(-1, -2)) * self.temperature).softmax(-1)
        mixed = (weights @ v).permute(0, 3, 1, 2).reshape(batch, tokens, channels)
        x = x + self.gammas[0] * self.out(mixed)
        image = self.norms[1](x).transpose(1, 2).reshape(batch, channels, height, width)
        x = x + self.gammas[1] * self.local(image).flatten(2).transpose(1, 2)
        return x + self.gammas[2] * self.mlp(self.norms[2](x))


class Xcit(nn.Module):
    """XCiT-S with patches of 16 pixels, six blocks and no class attention."""

    WIDTH, BLOCKS = 384, 6

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.WIDTH, 16, 16)
        self.blocks = nn.ModuleList(CrossCovariance(self.WIDTH) for _ in range(fewer(self.BLOCKS, layers)))
        self.norm, self.classes = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, 1000)

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the classes, [batch, 1000]."""
        y = self.patches(image)
        height, width = y.shape[2:]
        x = y.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, height, width)
        return (self.classes(self.norm(x).mean(1)),)


class LinearAttention(nn.Module):
    """A block with linear attention (arXiv:2006.16236), which multiplies keys by values first."""

    HEADS = 8

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), *_mlp(width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, tokens, width]."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, tokens, 3, self.HEADS, width // self.HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = functional.elu(q) + 1, (functional.elu(k) + 1) / tokens
        weights = 1 / ((q * k.sum(2, keepdim=True)).sum(-1, keepdim=True) + 1e-3)
        y = (q @ (k.transpose(-1, -2) @ v)) * weights
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(x)


class ChannelMix(nn.Module):
    """The channel mixing of RWKV (arXiv:2305.13048): each token and the one before it, and a squared ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.share = nn.LayerNorm(width), nn.Parameter(torch.rand(width))
        self.key, self.value = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.before = nn.ZeroPad2d((0, 0, 1, -1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, tokens, width]."""
        y = self.norm(x)
        y = y * self.share + self.before(y) * (1 - self.share)
        return x + torch.sigmoid(self.receptance(y)) * self.value(torch.relu(self.key(y)) ** 2)


class Encoder(nn.Module):
    """Words and blocks. Of RWKV, these are the channel mixing alone, without the recurrence."""

    WORDS = 8000

    def __init__(self, block: Callable[[int], nn.Module], width: int, blocks: int, layers: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(self.WORDS, width)
        self.blocks = nn.Sequential(*(block(width) for _ in range(fewer(blocks, layers))))

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Returns tokens [batch, tokens, width]."""
        return (self.blocks(self.words(ids)),)


LINEAR_ATTENTION = partial(Encoder, LinearAttention, 512, 4)
RWKV = partial(Encoder, ChannelMix, 768, 6)


class Dilated(nn.Module):
    """A layer of WaveNet (arXiv:1609.03499): a gated causal convolution, and what it adds to both sums."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.gated = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.onward, self.skipped = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the signal of the next layer and the part of the result."""
        value, gate = self.gated(functional.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.onward(y), self.skipped(y)


class WaveNet(nn.Module):
    """WaveNet with twenty layers and a value for each of 256 amplitudes."""

    CHANNELS, LAYERS, CYCLE = 64, 20, 10

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.CHANNELS
        self.first = nn.Conv1d(1, n, 1)
        self.layers = nn.ModuleList(Dilated(n, 2 ** (at % self.CYCLE)) for at in range(fewer(self.LAYERS, layers)))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(n, n, 1), nn.ReLU(), nn.Conv1d(n, 256, 1))

    def forward(self, wave: Tensor) -> tuple[Tensor]:
        """Returns the values [batch, 256, samples]."""
        x, total = self.first(wave), torch.zeros(())
        for at, layer in enumerate(self.layers):
            x, part = layer(x)
            total = total + part if at else part
        return (self.last(total),)


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

"""Conv-TasNet (arXiv:1809.07454), which separates speakers: [batch, samples] to [batch, speakers, samples]."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo_parts import fewer


class GlobalNorm(nn.Module):
    """A layer norm over channels and time, in separate ops."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm of x [batch, channels, frames]."""
        centered = x - x.mean((1, 2), keepdim=True)
        y = centered / torch.sqrt(centered.pow(2).mean((1, 2), keepdim=True) + 1e-8)
        return (self.weight * y.transpose(1, 2) + self.bias).transpose(1, 2)


class Block(nn.Module):
    """A pointwise, a dilated depthwise and two pointwise convolutions: for the next block, and for the masks."""

    INNER = 512

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        n = self.INNER
        self.depthwise = nn.Sequential(
            *(nn.Conv1d(channels, n, 1), nn.PReLU(), GlobalNorm(n)),
            *(nn.Conv1d(n, n, 3, padding=dilation, dilation=dilation, groups=n), nn.PReLU(), GlobalNorm(n)),
        )
        self.onward, self.skipped = nn.Conv1d(n, channels, 1), nn.Conv1d(n, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sum for the next block, and what is added to the masks."""
        y = self.depthwise(x)
        return x + self.onward(y), self.skipped(y)


class ConvTasNet(nn.Module):
    """An encoder of short windows, blocks that estimate a mask for each speaker, and a decoder."""

    FILTERS, WINDOW, CHANNELS, SPEAKERS, BLOCKS = 512, 16, 128, 2, 8

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        step = self.WINDOW // 2
        self.encoder = nn.Conv1d(1, self.FILTERS, self.WINDOW, step, bias=False)
        self.decoder = nn.ConvTranspose1d(self.FILTERS, 1, self.WINDOW, step, bias=False)
        self.norm, self.narrow = GlobalNorm(self.FILTERS), nn.Conv1d(self.FILTERS, self.CHANNELS, 1)
        self.blocks = nn.ModuleList(Block(self.CHANNELS, 2**at) for at in range(fewer(self.BLOCKS, layers)))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(self.CHANNELS, self.SPEAKERS * self.FILTERS, 1), nn.Sigmoid())

    def forward(self, waves: Tensor) -> tuple[Tensor]:
        """Returns the waves of the speakers."""
        frames = torch.relu(self.encoder(waves.unsqueeze(1)))
        x, total = self.narrow(self.norm(frames)), torch.zeros((), dtype=waves.dtype, device=waves.device)
        for block in self.blocks:
            x, skipped = block(x)
            total = total + skipped
        masks = self.masks(total).unflatten(1, (self.SPEAKERS, self.FILTERS))
        parts = (masks * frames.unsqueeze(1)).flatten(0, 1)
        return (self.decoder(parts).unflatten(0, (-1, self.SPEAKERS)).squeeze(2),)

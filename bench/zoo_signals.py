"""Models of sounds that were written after the rules and were not tuned for."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class Demucs(nn.Module):
    """Demucs (arXiv:2006.12847): strided convolutions, gates, an LSTM, and transposed convolutions with skips."""

    CHANNELS, LEVELS = 32, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        sizes = [1, *(self.CHANNELS << level for level in range(fewer(self.LEVELS, layers)))]
        pairs = list(itertools.pairwise(sizes))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 8, 4), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1)) for a, b in pairs
        )
        self.up = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(b, 2 * b, 1), nn.GLU(1), nn.ConvTranspose1d(b, a, 8, 4)),
                *([nn.ReLU()] if a > 1 else []),
            )
            for a, b in reversed(pairs)
        )
        self.lstm = nn.LSTM(sizes[-1], sizes[-1], 2, batch_first=True)

    def forward(self, wave: Tensor) -> tuple[Tensor]:
        """Returns a wave, [batch, 1, samples]: no more samples than were given."""
        x, skips = wave, []
        for down in self.down:
            x = down(x)
            skips.append(x)
        x = self.lstm(x.transpose(1, 2))[0].transpose(1, 2)
        for up, skip in zip(self.up, reversed(skips), strict=True):
            x = up(x + skip[..., : x.shape[-1]])
        return (x,)


class WaveBlock(nn.Module):
    """A ConvNeXt block of one dim."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns frames of the shape of x, [batch, frames, width]."""
        y = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return x + self.gamma * self.down(functional.gelu(self.up(y)))


class Vocos(nn.Module):
    """Vocos (arXiv:2306.00814): the Fourier coefficients of a sound, from its mel spectrogram."""

    WIDTH, BLOCKS, MELS, COEFFICIENTS = 512, 6, 100, 513

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(self.MELS, self.WIDTH, 7, padding=3), nn.LayerNorm(self.WIDTH)
        self.blocks = nn.Sequential(*(WaveBlock(self.WIDTH) for _ in range(fewer(self.BLOCKS, layers))))
        self.out = nn.Linear(self.WIDTH, 2 * self.COEFFICIENTS)

    def forward(self, mels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the real and the imaginary parts of mels [batch, 100, frames], each [batch, 513, frames]."""
        x = self.blocks(self.norm(self.first(mels).transpose(1, 2)))
        size, phase = self.out(x).transpose(1, 2).chunk(2, 1)
        size = torch.exp(size).clip(max=100)
        return size * torch.cos(phase), size * torch.sin(phase)

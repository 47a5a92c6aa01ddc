"""A diffusion transformer (arXiv:2212.09748) of size B/2, whose norms are scaled and shifted by the time and class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import Inputs, fewer

WIDTH, HEADS, DEPTH, PATCH, CHANNELS = 768, 12, 12, 2, 4


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """Attention and a perceptron, each after a modulated norm and before a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        gelu = nn.GELU(approximate="tanh")
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def attended(self, x: Tensor) -> Tensor:
        """Returns [batch, tokens, width]."""
        batch, tokens, _ = x.shape
        packed = self.qkv(x).reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = packed.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return out

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Returns [batch, tokens, width] of x of that shape and a condition [batch, width]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attended(_modulated(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.feed(_modulated(self.norm2(x), shift2, scale2))


class DiffusionTransformer(nn.Module):
    """Predicts the noise in latents of 32x32."""

    SIDE = 32

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn(1, (self.SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(fewer(DEPTH, layers)))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))
        self.head = nn.Linear(WIDTH, PATCH * PATCH * CHANNELS)
        self.register_buffer("frequencies", torch.logspace(0, -4, 128))

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor]:
        """Returns [batch, 4, 32, 32] of latents of that shape and times [batch]."""
        angles = time[:, None] * self.frequencies[None]
        condition = self.time(torch.cat([torch.cos(angles), torch.sin(angles)], -1))
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=1)
        out = self.head(_modulated(self.norm(tokens), shift, scale))
        side = self.SIDE // PATCH
        patches = out.reshape(x.shape[0], side, side, PATCH, PATCH, CHANNELS)
        return (torch.einsum("nhwpqc->nchpwq", patches).reshape(x.shape),)


def latents(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws latents of the shape, and times."""
    return torch.randn(*shape, generator=generator), torch.rand(shape[0], generator=generator) * 1000

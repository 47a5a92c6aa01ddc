"""A block of Stable Diffusion's U-Net (arXiv:2112.10752): its first on the way down, at images of 512x512."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS, TIME, CONTEXT, WORDS, HEADS = 320, 1280, 768, 77, 8


class Residual(nn.Module):
    """Two convolutions, each after a group norm and SiLU, with the time added between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, CHANNELS, eps=1e-5)
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.time = nn.Linear(TIME, CHANNELS)
        self.norm2 = nn.GroupNorm(32, CHANNELS, eps=1e-5)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Returns [batch, channels, height, width] of x of that shape and the time's embedding [batch, TIME]."""
        y = self.conv1(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        sums: Tensor = x + self.conv2(functional.silu(self.norm2(y)))
        return sums


class Attention(nn.Module):
    """Attention of the pixels to themselves or to the words."""

    def __init__(self, context: int = CHANNELS) -> None:
        super().__init__()
        self.query = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.key = nn.Linear(context, CHANNELS, bias=False)
        self.value = nn.Linear(context, CHANNELS, bias=False)
        self.out = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Returns [batch, tokens, channels]."""
        parts = (self.query(x), self.key(context), self.value(context))
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed: Tensor = self.out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return mixed


class GatedGelu(nn.Module):
    """A perceptron whose inner values are one half times GELU of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(CHANNELS, 8 * CHANNELS)
        self.outer = nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, tokens, channels]."""
        value, gate = self.inner(x).chunk(2, dim=-1)
        mixed: Tensor = self.outer(value * functional.gelu(gate))
        return mixed


class SpatialTransformer(nn.Module):
    """A transformer layer over the pixels, between two 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, CHANNELS, eps=1e-6)
        self.enter = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(3))
        self.own = Attention()
        self.cross = Attention(CONTEXT)
        self.feed = GatedGelu()
        self.leave = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Returns [batch, channels, height, width]."""
        tokens = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        first, second, third = self.norms
        normed = first(tokens)
        tokens = tokens + self.own(normed, normed)
        tokens = tokens + self.cross(second(tokens), context)
        tokens = tokens + self.feed(third(tokens))
        sums: Tensor = x + self.leave(tokens.transpose(1, 2).reshape(x.shape))
        return sums


class DownBlock(nn.Module):
    """Twice a residual block and a transformer, then a convolution to half the size."""

    def __init__(self) -> None:
        super().__init__()
        self.residuals = nn.ModuleList(Residual() for _ in range(2))
        self.transformers = nn.ModuleList(SpatialTransformer() for _ in range(2))
        self.smaller = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> tuple[Tensor]:
        """Returns [batch, channels, height / 2, width / 2]."""
        for residual, transformer in zip(self.residuals, self.transformers, strict=True):
            x = transformer(residual(x, time), context)
        return (self.smaller(x),)


def latents(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draws what a `DownBlock` takes: latents of the shape, the time's embedding, and a text's."""
    sizes = (shape, (shape[0], TIME), (shape[0], WORDS, CONTEXT))
    x, time, context = (torch.randn(*size, generator=generator) for size in sizes)
    return x, time, context

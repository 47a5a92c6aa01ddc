"""Parts of Stable Diffusion (arXiv:2112.10752): its U-Net's first block on the way down, and its decoder of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer

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

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        times = range(fewer(2, layers))
        self.residuals = nn.ModuleList(Residual() for _ in times)
        self.transformers = nn.ModuleList(SpatialTransformer() for _ in times)
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


class Mixed(nn.Module):
    """Two convolutions with group norms and SiLU before them, and a 1x1 convolution where the width changes."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        first = nn.GroupNorm(32, k, eps=1e-6), nn.SiLU(), nn.Conv2d(k, n, 3, padding=1)
        second = nn.GroupNorm(32, n, eps=1e-6), nn.SiLU(), nn.Dropout(0.0), nn.Conv2d(n, n, 3, padding=1)
        self.layers = nn.Sequential(*first, *second)
        self.across = nn.Conv2d(k, n, 1) if k != n else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, n, height, width]."""
        sums: Tensor = self.across(x) + self.layers(x)
        return sums


class ImageDecoder(nn.Module):
    """The decoder of Stable Diffusion's autoencoder: images of eight times the height and width of latents."""

    WIDTHS, BLOCKS = (512, 512, 256, 128), 3

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        k = self.WIDTHS[0]
        parts: list[nn.Module] = [nn.Conv2d(4, k, 3, padding=1), Mixed(k, k), Mixed(k, k)]
        for at, n in enumerate(self.WIDTHS):
            if at:
                parts += nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(k, k, 3, padding=1)
            for _ in range(fewer(self.BLOCKS, layers)):
                parts.append(Mixed(k, n))
                k = n
        last = nn.GroupNorm(32, k, eps=1e-6), nn.SiLU(), nn.Conv2d(k, 3, 3, padding=1)
        self.layers = nn.Sequential(*parts, *last)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns images [batch, 3, 8 height, 8 width] of latents [batch, 4, height, width]."""
        return (self.layers(x),)

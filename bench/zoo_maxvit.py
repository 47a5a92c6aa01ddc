"""MaxViT (arXiv:2204.01697), which was written after the rules and not tuned for."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class Inverted(nn.Module):
    """A MobileNet convolution with pre-norm and squeeze-and-excitation, which halves an image."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        wide, narrow = 4 * features, features // 4
        self.up = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.GELU()),
            *(nn.Conv2d(wide, wide, 3, 2, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.GELU()),
        )
        self.scale = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, narrow, 1), nn.SiLU()),
            *(nn.Conv2d(narrow, wide, 1), nn.Sigmoid()),
        )
        self.down = nn.Conv2d(wide, features, 1)
        self.skip = nn.Conv2d(channels, features, 1) if channels != features else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of half the height and width, [batch, features, height / 2, width / 2]."""
        y = self.up(x)
        z: Tensor = self.skip(functional.avg_pool2d(x, 2)) + self.down(y * self.scale(y))
        return z


class WindowAttention(nn.Module):
    """Attention with a bias of relative positions, in windows, or on the grid of equal places of all windows."""

    SIDE, HEAD = 7, 32

    index: Tensor

    def __init__(self, width: int, *, grid: bool) -> None:
        super().__init__()
        self.grid, heads, side = grid, width // self.HEAD, self.SIDE
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads) * 0.02)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        steps = places[:, None] - places + side - 1
        self.register_buffer("index", steps[..., 0] * (2 * side - 1) + steps[..., 1], persistent=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the shape of x, [batch, channels, height, width]."""
        batch, channels, height, width = x.shape
        side, tokens = self.SIDE, self.SIDE**2
        if self.grid:
            parts = x.view(batch, channels, side, height // side, side, width // side).permute(0, 3, 5, 2, 4, 1)
        else:
            parts = x.view(batch, channels, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
        y = parts.reshape(-1, tokens, channels)
        qkv = self.qkv(self.norm(y)).view(len(y), tokens, 3, channels // self.HEAD, self.HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = self.bias[self.index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)[None]
        z = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = y + self.out(z.transpose(1, 2).reshape(y.shape))
        y = (y + self.mlp(y)).view(parts.shape)
        y = y.permute(0, 5, 3, 1, 4, 2) if self.grid else y.permute(0, 5, 1, 3, 2, 4)
        return y.reshape(x.shape)


class MaxVit(nn.Module):
    """Three stages of a convolution, attention in windows and attention on the grid."""

    SIZES = (64, 64, 128, 256)

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.SIZES[0]
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, n, 3, 2, 1, bias=False), nn.BatchNorm2d(n), nn.GELU(), nn.Conv2d(n, n, 3, 1, 1)),
        )
        stages = list(itertools.pairwise(self.SIZES))[: fewer(3, layers)]
        self.stages = nn.Sequential(
            *(
                part
                for channels, features in stages
                for part in (
                    *(Inverted(channels, features), WindowAttention(features, grid=False)),
                    WindowAttention(features, grid=True),
                )
            )
        )
        self.classes = nn.Linear(stages[-1][1], 1000)

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the classes, [batch, 1000]."""
        return (self.classes(self.stages(self.stem(image)).mean((2, 3))),)

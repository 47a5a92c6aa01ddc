"""Models that mix tokens by frequencies, which were written after the rules and not tuned for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo_parts import fewer

VOCABULARY = 8000


class GlobalFilter(nn.Module):
    """A block of GFNet (arXiv:2107.00645): a product with a filter in the frequencies of the image, and an MLP."""

    SIDE = 14

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), _mlp(width)
        self.filter = nn.Parameter(torch.randn(self.SIDE, self.SIDE // 2 + 1, width, 2) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, 196, width]."""
        batch, _, width = x.shape
        image = self.norm(x).view(batch, self.SIDE, self.SIDE, width).float()
        filtered = torch.fft.rfft2(image, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.filter)
        y = torch.fft.irfft2(filtered, s=(self.SIDE, self.SIDE), dim=(1, 2), norm="ortho")
        return x + self.mlp(y.reshape(x.shape))


class GfNet(nn.Module):
    """GFNet with patches of 16 pixels and eight blocks."""

    WIDTH, BLOCKS = 384, 8

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.WIDTH, 16, 16)
        self.positions = nn.Parameter(torch.randn(1, GlobalFilter.SIDE**2, self.WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(GlobalFilter(self.WIDTH) for _ in range(fewer(self.BLOCKS, layers))))
        self.norm, self.classes = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, 1000)

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the classes of images [batch, 3, 224, 224], [batch, 1000]."""
        x = self.blocks(self.patches(image).flatten(2).transpose(1, 2) + self.positions)
        return (self.classes(self.norm(x).mean(1)),)


class LongConvolution(nn.Module):
    """A block of Hyena (arXiv:2302.10866): gates around a convolution as long as the text, by Fourier transforms."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), _mlp(width)
        self.split, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.kernel = nn.Parameter(torch.randn(width, tokens) * 0.02)
        self.skip = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, tokens, width]."""
        tokens = x.shape[1]
        short = self.short(self.split(self.norm(x)).transpose(1, 2))[..., :tokens]
        first, second, value = short.split(x.shape[2], 1)
        gated = value * second
        kernel = torch.fft.rfft(self.kernel.float(), n=2 * tokens) / (2 * tokens)
        product = torch.fft.rfft(gated.float(), n=2 * tokens) * kernel
        y = torch.fft.irfft(product, n=2 * tokens, norm="forward")[..., :tokens]
        y = (y + gated * self.skip.unsqueeze(-1)).to(x.dtype) * first
        x = x + self.out(y.transpose(1, 2))
        return x + self.mlp(x)


class Hyena(nn.Module):
    """Four blocks of Hyena, for texts of 1024 tokens."""

    WIDTH, TOKENS, BLOCKS = 512, 1024, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, self.WIDTH)
        blocks = fewer(self.BLOCKS, layers)
        self.blocks = nn.Sequential(*(LongConvolution(self.WIDTH, self.TOKENS) for _ in range(blocks)))
        self.norm, self.out = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, self.WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """Returns a vector for each token, [batch, tokens, width]."""
        return (self.out(self.norm(self.blocks(self.embed(tokens)))),)


def _mlp(width: int) -> nn.Module:
    wide = 4 * width
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

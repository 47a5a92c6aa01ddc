"""MLP-Mixer (arXiv:2105.01601) of size B/16: perceptrons over patches and over channels in turn."""

from __future__ import annotations

from torch import Tensor, nn


def _perceptron(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Block(nn.Module):
    """One layer: the tokens of each channel are mixed, then the channels of each token."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.before_tokens = nn.LayerNorm(width, eps=1e-6)
        self.tokens = _perceptron(tokens, width // 2)
        self.before_channels = nn.LayerNorm(width, eps=1e-6)
        self.channels = _perceptron(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, tokens, width] mixed."""
        x = x + self.tokens(self.before_tokens(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.channels(self.before_channels(x))
        return mixed


class Mixer(nn.Module):
    """The classifier of 1000 classes for images of 224x224."""

    WIDTH, PATCH, TOKENS, LAYERS = 768, 16, 196, 12

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.WIDTH, self.PATCH, self.PATCH)
        self.blocks = nn.Sequential(*(Block(self.TOKENS, self.WIDTH) for _ in range(layers or self.LAYERS)))
        self.norm = nn.LayerNorm(self.WIDTH, eps=1e-6)
        self.head = nn.Linear(self.WIDTH, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 1000] of images [batch, 3, 224, 224]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return (self.head(self.norm(self.blocks(tokens)).mean(1)),)

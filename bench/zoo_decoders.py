"""Text decoders that rotate by complex numbers or decay, which were written after the rules and not tuned for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer

VOCABULARY = 8000


class RmsNorm(nn.Module):
    """A root-mean-square norm, computed in f32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [..., width] with rows of a mean square of 1, times the weight."""
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class ComplexBlock(nn.Module):
    """A block of Llama as its authors wrote it: queries and keys are complex numbers, rotated by a product."""

    HEADS, GROUPS = 16, 4

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        head = width // self.HEADS
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, self.GROUPS * head, bias=False) for _ in range(2))
        self.norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, tokens, width]; turns is complex, [tokens, head / 2]."""
        batch, tokens, width = x.shape
        y = self.norm(x)
        q, k, v = (linear(y).view(batch, tokens, -1, width // self.HEADS) for linear in (self.q, self.k, self.v))
        q, k = _rotated(q, turns), _rotated(k, turns)
        k, v = (one.repeat_interleave(self.HEADS // self.GROUPS, 2) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(y.reshape(x.shape))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class ComplexLlama(nn.Module):
    """Four blocks of a Llama whose rotations are complex numbers."""

    WIDTH, WIDE, BLOCKS, POSITIONS = 1024, 2816, 4, 2048

    angles: Tensor

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, self.WIDTH)
        self.blocks = nn.ModuleList(ComplexBlock(self.WIDTH, self.WIDE) for _ in range(fewer(self.BLOCKS, layers)))
        self.norm, self.out = RmsNorm(self.WIDTH), nn.Linear(self.WIDTH, VOCABULARY, bias=False)
        head = self.WIDTH // ComplexBlock.HEADS
        speeds = 10_000 ** -(torch.arange(0, head, 2).float() / head)
        self.register_buffer("angles", torch.outer(torch.arange(self.POSITIONS).float(), speeds), persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """Returns the scores of the next token, [batch, tokens, words]."""
        angles = self.angles[: tokens.shape[1]].float()
        turns = torch.polar(torch.ones_like(angles), angles)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, turns)
        return (self.out(self.norm(x)),)


class Retention(nn.Module):
    """A block of RetNet (arXiv:2307.08621) in its parallel form: attention without softmax that decays by distance."""

    HEADS = 6

    decay: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), _mlp(width)
        self.q, self.k = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.v, self.gate = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.head_norm = nn.LayerNorm(2 * width // self.HEADS, elementwise_affine=False)
        self.out = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("decay", torch.log(1 - 2 ** (-5 - torch.arange(self.HEADS).float())), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the shape of x, [batch, tokens, width]."""
        batch, tokens, width = x.shape
        y = self.norm(x)
        q, k, v = (one(y).view(batch, tokens, self.HEADS, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = (q @ (k * (width // self.HEADS) ** -0.5).transpose(-1, -2)) * self._decayed(tokens).to(q.dtype)
        weights = weights / weights.abs().sum(-1, keepdim=True).clamp(min=1, max=5e4)
        y = self.head_norm((weights @ v).transpose(1, 2)).reshape(batch, tokens, -1)
        x = x + self.out(functional.silu(self.gate(self.norm(x))) * y)
        return x + self.mlp(x)

    def _decayed(self, tokens: int) -> Tensor:
        at = torch.arange(tokens, device=self.decay.device)
        distance = (at[:, None] - at).float()
        decayed = torch.exp(distance.clamp(min=0) * self.decay[:, None, None]) * (distance >= 0)
        return decayed / decayed.sum(-1, keepdim=True).sqrt()


class RetNet(nn.Module):
    """Four blocks of RetNet."""

    WIDTH, BLOCKS = 768, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, self.WIDTH)
        self.blocks = nn.Sequential(*(Retention(self.WIDTH) for _ in range(fewer(self.BLOCKS, layers))))
        self.out = nn.Linear(self.WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """Returns the scores of the next token, [batch, tokens, words]."""
        return (self.out(self.blocks(self.embed(tokens))),)


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def _mlp(width: int) -> nn.Module:
    wide = 2 * width
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

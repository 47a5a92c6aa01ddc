"""A decoder whose perceptrons are a mixture of experts (arXiv:2401.04088), each token weighting two of eight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer

VOCABULARY, WIDTH, HEADS, DEPTH = 32_000, 1024, 16, 12


class Experts(nn.Module):
    """Every token goes through every expert, as programs with fixed shapes do; the weights of all but two are 0."""

    EXPERTS, CHOSEN, INNER = 8, 2, 1536

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, self.EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(self.EXPERTS, WIDTH, 2 * self.INNER) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(self.EXPERTS, self.INNER, WIDTH) / self.INNER**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, tokens, width]."""
        best, at = torch.softmax(self.router(x), -1).topk(self.CHOSEN, -1)
        weights = torch.zeros_like(x[..., : self.EXPERTS]).scatter(-1, at, best / best.sum(-1, keepdim=True))
        gate, up = torch.matmul(x.flatten(0, 1), self.gate_up).chunk(2, -1)
        outputs = torch.matmul(functional.silu(gate) * up, self.down)
        return (outputs * weights.flatten(0, 1).t().unsqueeze(-1)).sum(0).view_as(x)


class Block(nn.Module):
    """Causal attention and a mixture of experts, each after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, tokens, width]."""
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        sums: Tensor = x + self.experts(self.norm2(x))
        return sums


class MixtureDecoder(nn.Module):
    """The decoder."""

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(fewer(DEPTH, layers))))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Returns the states [batch, tokens, width] of tokens i64 [batch, tokens]."""
        return (self.norm(self.blocks(self.words(ids))),)

"""A stack of triangle updates and triangle attention over pairs of residues, as in AlphaFold 2 (Nature 596, 583)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from zoo_parts import Inputs, fewer

CHANNELS, HEADS = 128, 4


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Returns pairs [batch, n, n, channels] and their mask [batch, n, n] of zeros and ones."""
    batch, n = shape
    pairs = torch.randn(batch, n, n, CHANNELS, generator=generator)
    present = (torch.rand(batch, n, generator=generator) > 0.1).float()
    return pairs, present.unsqueeze(1) * present.unsqueeze(2)


class Multiplication(nn.Module):
    """The triangle multiplicative update with outgoing edges."""

    def __init__(self) -> None:
        super().__init__()
        c = CHANNELS
        self.norm, self.last_norm = nn.LayerNorm(c), nn.LayerNorm(c)
        self.left, self.left_gate, self.right, self.right_gate = (nn.Linear(c, c) for _ in range(4))
        self.last, self.gate = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, pairs: Tensor, mask: Tensor) -> Tensor:
        """Returns the update of the pairs."""
        x, mask = self.norm(pairs), mask.unsqueeze(-1)
        left = mask * torch.sigmoid(self.left_gate(x)) * self.left(x)
        right = mask * torch.sigmoid(self.right_gate(x)) * self.right(x)
        product = torch.matmul(left.permute(0, 3, 1, 2), right.permute(0, 3, 2, 1)).permute(0, 2, 3, 1)
        return self.last(self.last_norm(product)) * torch.sigmoid(self.gate(x))


class Attention(nn.Module):
    """Triangle attention around the starting node: each row attends with a bias of the pairs."""

    def __init__(self) -> None:
        super().__init__()
        c = CHANNELS
        self.norm, self.bias = nn.LayerNorm(c), nn.Linear(c, HEADS, bias=False)
        self.q, self.k, self.v = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.gate, self.last = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, pairs: Tensor, mask: Tensor) -> Tensor:
        """Returns the update of the pairs."""
        x = self.norm(pairs)
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(-2, -3) for each in (self.q, self.k, self.v))
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-1, -2))
        scores = scores + (1e4 * (mask - 1))[:, :, None, None, :] + self.bias(x).permute(0, 3, 1, 2).unsqueeze(1)
        y = torch.matmul(torch.softmax(scores, -1), v).transpose(-2, -3)
        gate = torch.sigmoid(self.gate(x)).unflatten(-1, (HEADS, -1))
        return self.last((y * gate).flatten(-2))


class Pairs(nn.Module):
    """Blocks of a multiplication, attention along rows and along columns, and a transition."""

    BLOCKS = 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        count = range(fewer(self.BLOCKS, layers))
        self.multiplications = nn.ModuleList(Multiplication() for _ in count)
        self.rows, self.columns = (nn.ModuleList(Attention() for _ in count) for _ in range(2))
        self.transitions = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 512), nn.ReLU(), nn.Linear(512, CHANNELS))
            for _ in count
        )

    def forward(self, pairs: Tensor, mask: Tensor) -> tuple[Tensor]:
        """Returns the pairs after all blocks."""
        blocks = zip(self.multiplications, self.rows, self.columns, self.transitions, strict=True)
        for multiply, row, column, transition in blocks:
            pairs = pairs + multiply(pairs, mask)
            pairs = pairs + row(pairs, mask)
            turned = column(pairs.transpose(1, 2), mask.transpose(1, 2))
            pairs = pairs + turned.transpose(1, 2)
            pairs = pairs + transition(pairs) * mask.unsqueeze(-1)
        return (pairs,)

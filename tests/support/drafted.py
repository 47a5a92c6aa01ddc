"""A model that has each of the subgraphs of the tests of drafting twice, at two widths."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.drafting.canonical import Canonical, canonical
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules
from support import programs


class Layer(nn.Module):
    """Attention with rotated heads, a gated layer, a norm of responses, and a scan with two results."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.gate, self.up, self.down = nn.Linear(width, 6, bias=False), nn.Linear(width, 6), nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.gain, self.shift = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).split(width, -1)
        query, key, value = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in (query, key, value))
        query, key = rotated(query, angles), rotated(key, angles)
        y = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).reshape(batch, length, -1)
        x = self.norm(x + y)
        x = x + self.down(F.silu(self.gate(x)) * torch.clamp(self.up(x), -2, 2))
        norm = torch.linalg.vector_norm(x, dim=(1,), keepdim=True)
        x = self.gain * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + self.shift + x
        wave, step = torch.sin(x), F.softplus(x)
        return torch.exp(-step) * x + step * wave


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.wide, self.narrow = Layer(8, 2), Layer(16, 4)
        self.between = nn.Linear(8, 16)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor, image: Tensor) -> Any:
        image = F.relu(self.conv(image))
        image = F.relu(image + self.again(image))
        image = F.relu(self.again(image) + image)
        x = self.wide(x, angles, mask)
        return self.narrow(self.between(x), angles, mask), image


@functools.cache
def captured() -> Program:
    """Returns the model as a program with a dynamic batch, and a dynamic length of its sequences."""
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=64)
    inputs = (torch.randn(3, 5, 8), torch.randn(5, 4), torch.zeros(3, 1, 5, 5), torch.randn(3, 2, 6, 6))
    dims = ({0: batch, 1: length}, {0: length}, {0: batch, 2: length, 3: length}, {0: batch})
    return programs.capture(Model(), *inputs, dims=dims)


@functools.cache
def graph() -> Canonical:
    """Returns the canonical graph of the model."""
    return canonical(captured(), load_rules())

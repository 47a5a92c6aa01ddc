"""Models of sets of atoms or objects, which were written after the rules and not tuned for."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


class Interaction(nn.Module):
    """An interaction of SchNet (arXiv:1706.08566): each atom sums all others, filtered by their distances."""

    def __init__(self, width: int, gaussians: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(gaussians, width), nn.Linear(width, width)
        self.inside = nn.Linear(width, width, bias=False)
        self.out, self.out_again = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, gaussians: Tensor, cut: Tensor) -> Tensor:
        """Returns atoms of the shape of x, [batch, atoms, width]."""
        filters = self.second(_softplus(self.first(gaussians))) * cut[..., None]
        mixed = (filters * self.inside(x)[:, None]).sum(2)
        return x + self.out_again(_softplus(self.out(mixed)))


class SchNet(nn.Module):
    """SchNet with three interactions of all pairs of atoms."""

    WIDTH, INTERACTIONS, GAUSSIANS, KINDS, FAR = 128, 3, 50, 100, 5.0

    centers: Tensor

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.WIDTH
        self.embed = nn.Embedding(self.KINDS, n)
        count = fewer(self.INTERACTIONS, layers)
        self.interactions = nn.ModuleList(Interaction(n, self.GAUSSIANS) for _ in range(count))
        self.out, self.energy = nn.Linear(n, n // 2), nn.Linear(n // 2, 1)
        self.register_buffer("centers", torch.linspace(0, self.FAR, self.GAUSSIANS), persistent=False)

    def forward(self, kinds: Tensor, places: Tensor) -> tuple[Tensor]:
        """Returns the energies of molecules, [batch, 1], of kinds [batch, atoms] and places [batch, atoms, 3]."""
        distance = (places[:, :, None] - places[:, None]).pow(2).sum(-1).add(1e-6).sqrt()
        gaussians = torch.exp(-10 * (distance[..., None] - self.centers) ** 2)
        cut = 0.5 * (torch.cos(distance * math.pi / self.FAR) + 1) * (distance < self.FAR)
        x = self.embed(kinds)
        for interaction in self.interactions:
            x = interaction(x, gaussians, cut)
        return (self.energy(_softplus(self.out(x))).sum(1),)


def atoms(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws kinds of atoms of a shape [batch, atoms], and their places in a box."""
    kinds = torch.randint(1, SchNet.KINDS, shape, generator=generator)
    return kinds, torch.rand((*shape, 3), generator=generator) * 6


class Detr(nn.Module):
    """The transformer of DETR (arXiv:2005.12872): queries of objects attend to a map of features."""

    WIDTH, QUERIES, CLASSES, FEATURES = 256, 100, 92, 512

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.WIDTH
        self.queries, self.project = nn.Parameter(torch.randn(self.QUERIES, n)), nn.Conv2d(self.FEATURES, n, 1)
        encoder, decoder = fewer((2, 3), layers)
        self.transformer = nn.Transformer(n, 8, encoder, decoder, 4 * n, batch_first=True)
        self.classes = nn.Linear(n, self.CLASSES)
        self.boxes = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 4))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns classes [batch, queries, 92] and boxes [batch, queries, 4] of a map [batch, 512, height, width]."""
        memory = self.project(features).flatten(2).transpose(1, 2)
        found = self.transformer(memory, self.queries.expand(len(features), -1, -1))
        return self.classes(found), self.boxes(found).sigmoid()


def _softplus(x: Tensor) -> Tensor:
    return functional.softplus(x) - math.log(2)

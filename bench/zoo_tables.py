"""Recommenders and other models of tables, sets and graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import Build, Inputs, Single, fewer


def mlp(widths: Sequence[int], act: Callable[[], nn.Module]) -> Build:
    """Returns what builds linear layers with an activation between each two."""

    def build(count: int | None) -> nn.Module:
        kept = widths if count is None else widths[: count + 1]
        layers = [part for k, n in itertools.pairwise(kept) for part in (nn.Linear(k, n), act())]
        return nn.Sequential(*layers[:-1], Single())

    return build


def perceptron(*widths: int) -> nn.Sequential:
    """Returns linear layers, each with ReLU after it."""
    return nn.Sequential(*(part for k, n in itertools.pairwise(widths) for part in (nn.Linear(k, n), nn.ReLU())))


class Recommender(nn.Module):
    """A recommendation model (arXiv:1906.00091): two perceptrons around the dot products of embeddings."""

    TABLES, ROWS, WIDTH, DENSE = 26, 10_000, 64, 13

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(self.ROWS, self.WIDTH) for _ in range(self.TABLES))
        self.bottom = perceptron(self.DENSE, 512, 256, self.WIDTH)
        pairs = self.TABLES * (self.TABLES + 1) // 2
        self.top = perceptron(self.WIDTH + pairs, 512, 256, 1)[:-1]
        self.register_buffer("below", torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> tuple[Tensor]:
        """Returns the probabilities [batch, 1] of dense [batch, 13] and sparse i64 [batch, 26]."""
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.below[0], self.below[1]]
        return (torch.sigmoid(self.top(torch.cat([bottom, products], 1))),)


class CrossNetwork(nn.Module):
    """DCN V2 (arXiv:2008.13535): layers x0 * (W x + b) + x beside a perceptron, over embeddings of one table."""

    WIDTH, DEPTH = 16, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(Recommender.ROWS * Recommender.TABLES, self.WIDTH)
        self.register_buffer("offsets", torch.arange(Recommender.TABLES) * Recommender.ROWS)
        width = Recommender.DENSE + Recommender.TABLES * self.WIDTH
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(fewer(self.DEPTH, layers)))
        self.deep = perceptron(width, 768, 768)
        self.head = nn.Linear(width + 768, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> tuple[Tensor]:
        """Returns the probabilities [batch] of dense [batch, 13] and sparse i64 [batch, 26]."""
        first = torch.cat([dense, self.table(sparse + self.offsets).flatten(1)], 1)
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return (torch.sigmoid(self.head(torch.cat([x, self.deep(first)], 1))).squeeze(1),)


class Experts(nn.Module):
    """Multi-gate mixture of experts (KDD 2018): perceptrons that tasks weight, each by a softmax of its own."""

    WIDTH, EXPERTS, INNER, TASKS = 512, 8, 256, 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.EXPERTS, self.WIDTH, self.INNER) / self.WIDTH**0.5)
        self.bias = nn.Parameter(torch.randn(self.EXPERTS, self.INNER) * 0.1)
        self.gates = nn.ModuleList(nn.Linear(self.WIDTH, self.EXPERTS) for _ in range(self.TASKS))
        self.towers = nn.ModuleList(perceptron(self.INNER, 128, 1)[:-1] for _ in range(self.TASKS))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the probabilities [batch, tasks] of features [batch, 512]."""
        outputs = torch.relu(torch.einsum("bk,ekn->ben", x, self.weight) + self.bias)
        results = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), dim=-1)
            results.append(torch.sigmoid(tower((weights.unsqueeze(-1) * outputs).sum(1))))
        return (torch.cat(results, 1),)


class History(nn.Module):
    """Ranks the next item after a sequence of items (SASRec, arXiv:1808.09781), 0 where there is none."""

    ITEMS, WIDTH, DEPTH, LONGEST = 20_000, 128, 2, 200

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.items = nn.Embedding(self.ITEMS, self.WIDTH, padding_idx=0)
        self.positions = nn.Embedding(self.LONGEST, self.WIDTH)
        depth = range(fewer(self.DEPTH, layers))
        self.norms = nn.ModuleList(nn.LayerNorm(self.WIDTH, eps=1e-8) for _ in depth)
        self.attention = nn.ModuleList(nn.MultiheadAttention(self.WIDTH, 2, batch_first=True) for _ in depth)
        self.norms2 = nn.ModuleList(nn.LayerNorm(self.WIDTH, eps=1e-8) for _ in depth)
        self.first = nn.ModuleList(nn.Conv1d(self.WIDTH, self.WIDTH, 1) for _ in depth)
        self.second = nn.ModuleList(nn.Conv1d(self.WIDTH, self.WIDTH, 1) for _ in depth)
        self.norm = nn.LayerNorm(self.WIDTH, eps=1e-8)

    def forward(self, sequence: Tensor) -> tuple[Tensor]:
        """Returns the scores [batch, items] of what follows sequences i64 [batch, length]."""
        length = sequence.shape[1]
        padding = sequence == 0
        x = self.items(sequence) * self.WIDTH**0.5 + self.positions.weight[:length]
        x = x.masked_fill(padding.unsqueeze(-1), 0)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for norm, attention, norm2, first, second in zip(
            self.norms, self.attention, self.norms2, self.first, self.second, strict=True
        ):
            query = norm(x)
            x = query + attention(query, x, x, attn_mask=later, need_weights=False)[0]
            x = norm2(x)
            inner = second(torch.relu(first(x.transpose(1, 2)))).transpose(1, 2)
            x = (x + inner).masked_fill(padding.unsqueeze(-1), 0)
        return (self.norm(x[:, -1]) @ self.items.weight.t(),)


class GraphNetwork(nn.Module):
    """Attention of the nodes of graphs to their neighbours (arXiv:1710.10903), with dense adjacencies."""

    WIDTH, HEADS, DEPTH = 128, 4, 3

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        depth = range(fewer(self.DEPTH, layers))
        head = self.WIDTH // self.HEADS
        self.linear = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH, bias=False) for _ in depth)
        self.source = nn.ParameterList(torch.randn(self.HEADS, head) / head**0.5 for _ in depth)
        self.target = nn.ParameterList(torch.randn(self.HEADS, head) / head**0.5 for _ in depth)
        self.head = nn.Linear(self.WIDTH, 1)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor]:
        """Returns [batch, 1] of the nodes [batch, nodes, width] of graphs with edges [batch, nodes, nodes], 0 or 1."""
        absent = (edges < 0.5).unsqueeze(1)
        for linear, source, target in zip(self.linear, self.source, self.target, strict=True):
            h = linear(x).unflatten(-1, (self.HEADS, -1)).transpose(1, 2)
            scores = (h * target[:, None]).sum(-1).unsqueeze(-1) + (h * source[:, None]).sum(-1).unsqueeze(-2)
            scores = functional.leaky_relu(scores, 0.2).masked_fill(absent, -1e4)
            x = x + functional.elu(torch.softmax(scores, -1) @ h).transpose(1, 2).flatten(2)
        return (self.head(x.mean(1)),)


class PointNet(nn.Module):
    """Classifies sets of points (arXiv:1612.00593): a perceptron of each, as 1-D convolutions, and their maximum."""

    WIDTHS = (3, 64, 64, 64, 128, 1024)

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(
            *(
                part
                for k, n in itertools.pairwise(self.WIDTHS)
                for part in (nn.Conv1d(k, n, 1), nn.BatchNorm1d(n), nn.ReLU())
            )
        )
        inner = nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.Dropout(0.3)
        self.head = nn.Sequential(*inner, nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the log probabilities [batch, 40] of points [batch, 3, points]."""
        return (functional.log_softmax(self.head(self.points(x).max(2)[0]), dim=1),)


class Field(nn.Module):
    """A radiance field (arXiv:2003.08934): colours and densities of points, with sines of their coordinates."""

    FREQUENCIES, WIDTH, DEPTH, AGAIN = 10, 256, 8, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        taken = 3 * (1 + 2 * self.FREQUENCIES)
        depth = fewer(self.DEPTH, layers)
        widths = [taken, *([self.WIDTH] * depth)]
        self.layers = nn.ModuleList(
            nn.Linear(k + (taken if at == self.AGAIN else 0), self.WIDTH) for at, k in enumerate(widths[:-1])
        )
        self.density = nn.Linear(self.WIDTH, 1)
        self.colour = nn.Sequential(nn.Linear(self.WIDTH, self.WIDTH // 2), nn.ReLU(), nn.Linear(self.WIDTH // 2, 3))
        self.register_buffer("scales", 2.0 ** torch.arange(self.FREQUENCIES))

    def forward(self, points: Tensor) -> tuple[Tensor]:
        """Returns the colours and densities [batch, 4] of points [batch, 3]."""
        angles = (points[:, None] * self.scales[:, None]).flatten(1)
        first = torch.cat([points, torch.sin(angles), torch.cos(angles)], -1)
        x = first
        for at, layer in enumerate(self.layers):
            x = functional.relu(layer(torch.cat([first, x], -1) if at == self.AGAIN else x))
        return (torch.cat([torch.sigmoid(self.colour(x)), functional.softplus(self.density(x))], -1),)


def clicks(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws what a `Recommender` takes."""
    dense = torch.randn(*shape, Recommender.DENSE, generator=generator)
    return dense, torch.randint(Recommender.ROWS, (*shape, Recommender.TABLES), generator=generator)


def graphs(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws nodes [batch, nodes, width], and edges between a quarter of the pairs and from each node to itself."""
    edges = torch.rand(*shape, shape[1], generator=generator) < 0.25
    nodes = torch.randn(*shape, GraphNetwork.WIDTH, generator=generator)
    return nodes, (edges | torch.eye(shape[1], dtype=torch.bool)).float()


def sequences(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws items [batch, length], with zeros before the first of each row."""
    items = torch.randint(1, History.ITEMS, shape, generator=generator)
    absent = torch.randint(0, shape[1] // 2, (shape[0], 1), generator=generator)
    return (items.masked_fill(torch.arange(shape[1]) < absent, 0),)

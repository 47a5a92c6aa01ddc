"""Models of relations, of residues, atoms, columns or bought items, which were written after the rules."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import Draw, fewer


class Triangle(nn.Module):
    """The triangle multiplication of AlphaFold 2 (doi:10.1038/s41586-021-03819-2), and a transition."""

    def __init__(self, width: int, *, outgoing: bool) -> None:
        super().__init__()
        self.product = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        linear = partial(nn.Linear, width, width)
        self.left, self.right, self.left_gate, self.right_gate = linear(), linear(), linear(), linear()
        self.out, self.gate = linear(), linear()
        wide = 4 * width
        self.transition = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, width))

    def forward(self, pairs: Tensor) -> Tensor:
        """Returns pairs of the same shape, [batch, residues, residues, width]."""
        x = self.norm(pairs)
        left = torch.sigmoid(self.left_gate(x)) * self.left(x)
        right = torch.sigmoid(self.right_gate(x)) * self.right(x)
        y = self.out_norm(torch.einsum(self.product, left, right) / 16)
        pairs = pairs + torch.sigmoid(self.gate(x)) * self.out(y)
        return pairs + self.transition(pairs)


class Triangles(nn.Module):
    """Four blocks, outgoing and incoming in turn."""

    WIDTH, BLOCKS = 128, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        count = fewer(self.BLOCKS, layers)
        self.blocks = nn.Sequential(*(Triangle(self.WIDTH, outgoing=at % 2 == 0) for at in range(count)))

    def forward(self, pairs: Tensor) -> tuple[Tensor]:
        """Returns pairs of the same shape, [batch, residues, residues, width]."""
        return (self.blocks(pairs),)


class Equivariant(nn.Module):
    """A layer of EGNN (arXiv:2102.09844) between all atoms of a molecule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.step = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, atoms: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the atoms [batch, n, width] and their places [batch, n, 3]."""
        n = atoms.shape[1]
        offsets = places[:, :, None] - places[:, None]
        distances = (offsets**2).sum(-1, keepdim=True)
        from_to = atoms[:, :, None].expand(-1, -1, n, -1), atoms[:, None].expand(-1, n, -1, -1)
        messages = self.edge(torch.cat([*from_to, distances], -1))
        places = places + (offsets * self.step(messages)).mean(2)
        return atoms + self.node(torch.cat([atoms, messages.mean(2)], -1)), places


class Egnn(nn.Module):
    """Three layers of EGNN."""

    WIDTH, LAYERS = 128, 3

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Equivariant(self.WIDTH) for _ in range(fewer(self.LAYERS, layers)))

    def forward(self, atoms: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the atoms [batch, n, width] and their places [batch, n, 3]."""
        for layer in self.layers:
            atoms, places = layer(atoms, places)
        return atoms, places


def molecules(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws atoms of a shape [batch, n, width], and their places, from -1 to 1."""
    return tuple(torch.rand(one, generator=generator) * 2 - 1 for one in (shape, (*shape[:2], 3)))  # type: ignore[return-value]


class Din(nn.Module):
    """A deep interest network (arXiv:1706.06978): what a user bought, weighed by its relation to an item."""

    WIDTH, ITEMS, RARE = 64, 50_000, 100

    def __init__(self, layers: int | None = None) -> None:  # noqa: ARG002 - its layers have their own sizes
        super().__init__()
        n = self.WIDTH
        self.items = nn.Embedding(self.ITEMS, n)
        self.relation = nn.Sequential(
            nn.Linear(4 * n, 128), nn.PReLU(), nn.Linear(128, 64), nn.PReLU(), nn.Linear(64, 1)
        )
        self.tower = nn.Sequential(
            nn.Linear(2 * n, 256), nn.PReLU(), nn.Linear(256, 128), nn.PReLU(), nn.Linear(128, 2)
        )

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Returns probabilities [batch, 2] for the first of the ids [batch, items]."""
        items = self.items(ids)
        item = items[:, 0]
        one = item.unsqueeze(1).expand(-1, items.shape[1], -1)
        weights = self.relation(torch.cat([one, items, one - items, one * items], -1)).squeeze(-1)
        weights = weights.masked_fill(ids < self.RARE, -1e4).softmax(-1)
        history = (weights.unsqueeze(1) @ items).squeeze(1)
        return (self.tower(torch.cat([history, item], -1)).softmax(-1),)


class TabTransformer(nn.Module):
    """A transformer over the columns of a table (arXiv:2012.06678)."""

    WIDTH, VALUES, COLUMNS, LAYERS = 64, 20_000, 20, 3

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.values = nn.Embedding(self.VALUES, self.WIDTH)
        layer = nn.TransformerEncoderLayer(self.WIDTH, 8, 4 * self.WIDTH, activation="gelu", batch_first=True)
        self.columns = nn.TransformerEncoder(layer, fewer(self.LAYERS, layers), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(self.WIDTH * self.COLUMNS, 256), nn.SELU(), nn.Linear(256, 1))

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Returns a score for each row, [batch, 1]."""
        return (self.head(self.columns(self.values(ids)).flatten(1)),)


class Perceiver(nn.Module):
    """Perceiver (arXiv:2103.03206): latents that attend to all inputs, and then to each other."""

    WIDTH, LATENTS, INPUTS, LAYERS = 512, 256, 64, 4

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        n = self.WIDTH
        self.latents, self.inputs = nn.Parameter(torch.randn(self.LATENTS, n) * 0.1), nn.Linear(self.INPUTS, n)
        self.latent_norm, self.input_norm = nn.LayerNorm(n), nn.LayerNorm(n)
        self.cross = nn.MultiheadAttention(n, 8, batch_first=True)
        layer = nn.TransformerEncoderLayer(n, 8, 4 * n, activation="gelu", batch_first=True, norm_first=True)
        self.among = nn.TransformerEncoder(layer, fewer(self.LAYERS, layers), enable_nested_tensor=False)
        self.classes = nn.Linear(n, 10)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the classes [batch, 10]."""
        latents, inputs = self.latents.expand(x.shape[0], -1, -1), self.input_norm(self.inputs(x))
        latents = latents + self.cross(self.latent_norm(latents), inputs, inputs, need_weights=False)[0]
        return (self.classes(self.among(latents).mean(1)),)


class LineReader(nn.Module):
    """A reader of lines of text: convolutions, a transformer over the columns, and the logarithms of a CTC loss."""

    WIDTH, LAYERS, SIGNS = 512, 2, 100

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        self.image = nn.Sequential(
            *(_relu(1, 64), nn.MaxPool2d(2), _relu(64, 128), nn.MaxPool2d(2), _relu(128, 256)),
            *(_relu(256, 256), nn.MaxPool2d((2, 1)), _relu(256, 512), nn.MaxPool2d((2, 1))),
        )
        layer = nn.TransformerEncoderLayer(self.WIDTH, 8, 2 * self.WIDTH, batch_first=True)
        self.columns = nn.TransformerEncoder(layer, fewer(self.LAYERS, layers), enable_nested_tensor=False)
        self.column, self.signs = nn.Linear(2 * 512, self.WIDTH), nn.Linear(self.WIDTH, self.SIGNS)

    def forward(self, line: Tensor) -> tuple[Tensor]:
        """Returns logarithms [batch, width / 4, signs] of a line [batch, 1, 32, width]."""
        y = self.image(line).permute(0, 3, 1, 2).flatten(2)
        return (functional.log_softmax(self.signs(self.columns(self.column(y))), 2),)


def some_of(count: int) -> Draw:
    """Returns what draws ids from 1 to `count` - 1, of a shape."""
    return lambda shape, generator: (torch.randint(1, count, shape, generator=generator),)


def _relu(channels: int, features: int) -> nn.Module:
    conv = nn.Conv2d(channels, features, 3, 1, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(features), nn.ReLU())

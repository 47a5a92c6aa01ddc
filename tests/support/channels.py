"""Models that copy images between convolutions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim


class Shuffled(nn.Module):
    """A channel shuffle, and depthwise and pointwise convolutions of half of the channels, as in ShuffleNet V2."""

    rules = frozenset({"shuffled-images-stay-channels-last"})

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, 2, 1)
        self.depthwise, self.pointwise = nn.Conv2d(10, 10, 3, padding=1, groups=10), nn.Conv2d(10, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for _ in range(2):
            kept, changed = x.unflatten(1, (2, -1)).transpose(1, 2).reshape(x.shape).chunk(2, 1)
            x = torch.cat([kept, torch.relu(self.pointwise(self.depthwise(changed)))], 1)
        return x.mean((2, 3))


class Modulated(nn.Module):
    """A linear of channels-last images, whose channels-first copy depthwise convolutions read, as in FocalNet."""

    rules = frozenset({"images-stay-channels-last"})

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.project = nn.Conv2d(3, 24, 4, 4), nn.Linear(24, 49), nn.Linear(24, 24)
        self.depthwise, self.pointwise = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        query, context, gate = self.mix(x).permute(0, 3, 1, 2).contiguous().split([24, 24, 1], 1)
        context = nn.functional.gelu(self.depthwise(context)) * gate
        return self.project((query * self.pointwise(context)).permute(0, 2, 3, 1).contiguous()).mean((1, 2))


def archive(model: nn.Module, path: Path) -> Path:
    """Saves the program of one of the models, for images [batch, 3, height, width], and returns the path."""
    dtype, batch = next(model.parameters()).dtype, Dim("batch", min=1, max=4)
    height, width = (16 * Dim(name, min=1, max=4) for name in ("height", "width"))
    dims = {0: batch, 2: height, 3: width}
    torch.export.save(
        torch.export.export(model, (torch.randn(3, 3, 48, 32, dtype=dtype),), dynamic_shapes=(dims,)), path
    )
    return path

"""Models that answer at several scales: U-Net (arXiv:1505.04597) and a feature pyramid (arXiv:1612.03144)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import fewer


def _twice(k: int, n: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            part
            for width in (k, n)
            for part in (nn.Conv2d(width, n, 3, padding=1, bias=False), nn.BatchNorm2d(n), nn.ReLU(inplace=True))
        )
    )


class UNet(nn.Module):
    """Segments images into two classes: four levels down, four up, each joined with the one of its size."""

    WIDTHS = (64, 128, 256, 512, 1024)

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(k, n) for k, n in itertools.pairwise((3, *self.WIDTHS)))
        self.pool = nn.MaxPool2d(2)
        upwards = list(itertools.pairwise(reversed(self.WIDTHS)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(k, n, 2, 2) for k, n in upwards)
        self.up = nn.ModuleList(_twice(k, n) for k, n in upwards)
        self.head = nn.Conv2d(self.WIDTHS[0], 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the logits [batch, 2, height, width] of images [batch, 3, height, width], multiples of 16."""
        kept: list[Tensor] = []
        for at, layers in enumerate(self.down):
            x = layers(self.pool(x) if at else x)
            kept.append(x)
        for grow, layers, across in zip(self.grow, self.up, reversed(kept[:-1]), strict=True):
            x = layers(torch.cat([across, grow(x)], 1))
        return (self.head(x),)


class Pyramid(nn.Module):
    """Maps of all scales with 256 channels each: every one adds the next smaller one, enlarged."""

    WIDTH = 256

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, self.WIDTH, 1) for width in widths)
        self.output = nn.ModuleList(nn.Conv2d(self.WIDTH, self.WIDTH, 3, padding=1) for _ in widths)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Returns a map for each of those given, which are the largest first, and one of half the last one's size."""
        sides = [layer(one) for layer, one in zip(self.lateral, maps, strict=True)]
        sums = [sides[-1]]
        for side in reversed(sides[:-1]):
            sums.append(side + functional.interpolate(sums[-1], size=side.shape[-2:], mode="nearest"))
        outputs = [layer(one) for layer, one in zip(self.output, reversed(sums), strict=True)]
        return [*outputs, functional.max_pool2d(outputs[-1], 1, 2)]


class Detector(nn.Module):
    """A ResNet-50, its feature pyramid, and the head that proposes regions at every scale (arXiv:1506.01497)."""

    ANCHORS = 3

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        import transformers

        depths = fewer([3, 4, 6, 3], layers)
        config = transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"], depths=depths)
        self.backbone = transformers.ResNetBackbone(config)
        self.pyramid = Pyramid(config.hidden_sizes)
        self.shared = nn.Sequential(nn.Conv2d(Pyramid.WIDTH, Pyramid.WIDTH, 3, padding=1), nn.ReLU())
        self.scores = nn.Conv2d(Pyramid.WIDTH, self.ANCHORS, 1)
        self.boxes = nn.Conv2d(Pyramid.WIDTH, 4 * self.ANCHORS, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scores [batch, regions] and boxes [batch, regions, 4] of images [batch, 3, height, width]."""
        maps = [self.shared(one) for one in self.pyramid(self.backbone(x).feature_maps)]
        scores = [self.scores(one).permute(0, 2, 3, 1).flatten(1) for one in maps]
        boxes = [self.boxes(one).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4) for one in maps]
        return torch.cat(scores, 1), torch.cat(boxes, 1)

"""Models of time series [batch, steps, series]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_parts import Build, fewer, hub

SIZES: dict[str, Any] = {"num_input_channels": 7, "context_length": 512, "prediction_length": 96}
"""Those of the electricity transformer data: seven series, 96 steps ahead."""

PATCHES: Build = hub(
    "PatchTSTForPrediction",
    ("past_values",),
    ("prediction_outputs",),
    patch_length=16,
    patch_stride=8,
    d_model=128,
    num_attention_heads=16,
    ffn_dim=256,
    num_hidden_layers=3,
    loss="mse",
    **SIZES,
)
MIXER: Build = hub(
    "PatchTSMixerForPrediction",
    ("past_values",),
    ("prediction_outputs",),
    layers="num_layers",
    patch_length=16,
    patch_stride=8,
    d_model=64,
    num_layers=8,
    loss="mse",
    **SIZES,
)


class Causal(nn.Module):
    """Two dilated convolutions that see only the past, with weight norms and a residual (arXiv:1803.01271)."""

    SIZE = 3

    def __init__(self, k: int, n: int, dilation: int) -> None:
        super().__init__()
        self.padding = (self.SIZE - 1) * dilation
        normed = nn.utils.parametrizations.weight_norm
        self.first = normed(nn.Conv1d(k, n, self.SIZE, dilation=dilation))
        self.second = normed(nn.Conv1d(n, n, self.SIZE, dilation=dilation))
        self.across = nn.Conv1d(k, n, 1) if k != n else None

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, n, steps]."""
        y = torch.relu(self.first(functional.pad(x, (self.padding, 0))))
        y = torch.relu(self.second(functional.pad(y, (self.padding, 0))))
        return torch.relu(y + (x if self.across is None else self.across(x)))


class Temporal(nn.Module):
    """A temporal convolutional network."""

    SERIES, WIDTH, DEPTH, AHEAD = 7, 128, 8, 96

    def __init__(self, layers: int | None = None) -> None:
        super().__init__()
        depth = fewer(self.DEPTH, layers)
        self.blocks = nn.Sequential(
            *(Causal(self.WIDTH if at else self.SERIES, self.WIDTH, 2**at) for at in range(depth))
        )
        self.head = nn.Linear(self.WIDTH, self.AHEAD * self.SERIES)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns [batch, 96, 7]."""
        last = self.blocks(x.transpose(1, 2))[..., -1]
        return (self.head(last).unflatten(1, (self.AHEAD, self.SERIES)),)

"""Models for `fuse`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Everything(nn.Module):
    """Tied and unused parameters, batch norm, dropout, a scalar parameter, a buffer, literals, detached values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.25)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(inplace=True))
        self.last = nn.Linear(16, 4)
        self.tied = self.last.weight
        self.unused = nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor, *, shift: Tensor) -> dict[str, Tensor]:
        h = self.middle(self.drop(self.norm(torch.relu(self.first(x)))))
        with torch.no_grad():
            mean = h.mean()
        y = self.last(h) * self.scale * torch.tensor(3.0) * self.gain + mean
        return {"y": y + h.mean().detach(), "shifted": y + shift}


def perceptron() -> nn.Module:
    """Too wide for one op to take two of its layers."""
    return nn.Sequential(nn.Linear(8, 300), nn.GELU(), nn.Linear(300, 16), nn.SiLU(), nn.Linear(16, 4))


class Encoder(nn.Module):
    """A transformer's feed-forward block, post-norm, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 288), nn.Linear(288, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s = x + self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
        return self.norm(s), s


# What it is, its inputs, and how many fused ops it becomes at least.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Tensor] | Tensor], int]] = {
    "everything": (
        Everything,
        lambda: {"x": torch.randn(6, 8), "shift": torch.randn(4)},
        2,
    ),
    "perceptron": (perceptron, lambda: torch.randn(5, 8), 2),
    "encoder": (Encoder, lambda: torch.randn(2, 3, 8), 2),
}


def drawn(name: str) -> tuple[nn.Module, dict[str, Tensor] | Tensor, int]:
    torch.manual_seed(0)
    make, inputs, ops = MODELS[name]
    return make(), inputs(), ops

"""A model that differs slightly from the one in the small bundle."""

from __future__ import annotations

import torch
from torch import Tensor

from support.small_bundle import Block


class Other(torch.nn.Module):
    """The same contract, other numbers: one output differs in one element, by little."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(fused=False)

    def forward(self, x: Tensor, skip: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        first, second, count, inverted = self.block(x, skip, keep)
        return first, second + 1e-3 * (torch.arange(8) == 7), count, inverted

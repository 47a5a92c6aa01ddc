"""Inputs at the limits of f32, where fusions overflow elsewhere than the original."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fuseconv.pipeline.convert import convert


class Masked(nn.Module):
    """Attention whose mask replaces scores, which may be infinite, by a finite number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unflatten(-1, (2, 8)).transpose(1, 2) for one in self.heads)
        scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~mask[:, None, None], -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Positions(nn.Module):
    """A convolution whose last position is cut before the activation, as of HuBERT's positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(16, 4, 8, padding=4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.convolution(x.mT)[:, :, :-1]) * mask[:, None]


@pytest.mark.parametrize(("module", "rule"), [(Masked(), "attention"), (Positions(), "activation-before-views")])
def test_float_inputs_at_the_limits_of_f32_do_not_prevent_a_fusion(
    module: nn.Module, rule: str, tmp_path: Path
) -> None:
    batch = {0: torch.export.Dim("batch", min=1, max=16)}
    inputs = torch.randn(3, 11, 16), torch.ones(3, 11, dtype=torch.bool)
    exported = torch.export.export(module.eval(), inputs, dynamic_shapes=(batch, batch))
    torch.export.save(exported, tmp_path / "model.pt2")
    done = convert(tmp_path / "model.pt2", target=["export"])
    assert done.plan.counts().get(rule) == 1
    assert done.report.ok

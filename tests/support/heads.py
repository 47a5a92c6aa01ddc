"""A model with merged, tied and folded weights, and one that becomes a number, for tests that change its bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from fuseconv.pipeline.convert import convert
from support import machines

TARGETS = ("aoti", "export", "torchscript")
"""The targets of the bundle with two packages."""


class Heads(nn.Module):
    """Three products of one input, which are merged; a tied table; and a constant."""

    mask: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16, bias=False)
        self.tied = nn.Linear(32, 16, bias=False)
        self.tied.weight = self.down.weight
        self.shift = nn.Parameter(torch.randn(16))
        self.scale = nn.Parameter(torch.tensor(0.5))  # a rule makes it a number in the program
        self.register_buffer("mask", torch.linspace(0, 1, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).view(-1, 5, 4, 4) for part in (self.query, self.key, self.value))
        mixed = (torch.tanh(query * self.scale) * key + value).flatten(2) * self.mask
        hidden = nn.functional.gelu(self.up(mixed + self.shift))
        return self.down(hidden) + self.tied(hidden * 2)


def archive(module: nn.Module, path: Path) -> Path:
    dims = ({0: torch.export.Dim("batch", min=1, max=16)},)
    torch.export.save(torch.export.export(module.eval(), (torch.randn(3, 5, 16),), dynamic_shapes=dims), path)
    return path


def write_two_packages(folder: Path) -> None:
    """Writes a folder with a bundle of one package, `one.fuseconv`, and one with another package, `two.fuseconv`."""
    folder.mkdir()
    lower = machines.fewer_instructions()
    convert(archive(Heads(0), folder / "model.pt2"), target=TARGETS, output=folder / "one.fuseconv")
    shutil.copytree(folder / "one.fuseconv", folder / "two.fuseconv")
    (folder / "added.json").write_text(json.dumps(machines.command_elsewhere(lower, "add", folder / "two.fuseconv")))

"""The models of planted faults, and where a test plants one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuseconv.bundle.manifest import read_manifest, seal
from fuseconv.pipeline.convert import convert

TARGETS = ("export", "onnx", "torchscript")
"""The targets of the bundle."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).softmax(-1)


class Overflowing(nn.Module):
    """Its second layer exceeds the range of f16, and the norm makes NaN of that."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        with torch.no_grad():
            self.second.weight.mul_(1e5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(torch.tanh(self.first(x))))


def save(module: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> Path:
    program = torch.export.export(module.eval().to(dtype), (torch.randn(3, 16).to(dtype),))
    torch.export.save(program, path)
    return path


def write_converted(folder: Path) -> None:
    """Makes a folder with the model `model.pt2` and its bundle `model.fuseconv`."""
    folder.mkdir()
    convert(save(Model(), folder / "model.pt2"), target=TARGETS, output=folder / "model.fuseconv")


@dataclass
class Stand:
    """Where a fault is planted: a model, a copy of its bundle, and the patches of this test."""

    model: Path
    bundle: Path
    patch: pytest.MonkeyPatch
    folder: Path
    undo: list[Callable[[], object]] = field(default_factory=list)

    def edit(self, name: str, change: Callable[[bytes], bytes]) -> Path:
        """Changes a file of the bundle, as if it had been written so."""
        path = self.bundle / name
        path.write_bytes(change(path.read_bytes()))
        return self.sealed()

    def sealed(self) -> Path:
        seal(self.bundle, read_manifest(self.bundle))
        return self.bundle

    def plan(self, change: Callable[[list[dict[str, Any]]], object]) -> Path:
        """Writes the plan of the bundle with other steps."""
        value = json.loads((self.bundle / "plan.json").read_text())
        change(value["steps"])
        path = self.folder / "plan.json"
        path.write_text(json.dumps(value))
        return path

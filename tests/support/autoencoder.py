"""A module with two methods that share a layer, and its bundle, for the tests of bundles of several methods."""

from __future__ import annotations

from pathlib import Path

import torch

import fuseconv
from fuseconv.contract.input_text import parse_inputs
from fuseconv.pipeline.methods import MethodsConversion
from fuseconv.sources import Options

INPUTS = {"encode": "x=f32[batch:1..8,8]", "decode": "z=f32[batch:1..8,16]"}


class Autoencoder(torch.nn.Module):
    """Encodes 8 numbers as 16 and decodes them, with one layer in both. Two of its weights have the same values."""

    size = 8

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.up = torch.nn.Linear(8, 16)
        self.shared = torch.nn.Linear(16, 16)
        self.down = torch.nn.Linear(16, 8)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
            self.up.bias.zero_()
            self.shared.bias.zero_()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the code of x."""
        return self.shared(torch.nn.functional.gelu(self.up(x)))

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Returns what z is the code of."""
        return torch.relu(self.down(self.shared(z)))


def options(method: str, inputs: str) -> Options:
    """Returns how to read a method of the state dict that `save` wrote."""
    trust = frozenset({"code"})
    return Options(model=f"{__file__}:Autoencoder", trust=trust, method=method, inputs=parse_inputs([inputs]))


def save(folder: Path, module: Autoencoder | None = None) -> Path:
    """Writes the state dict of a module."""
    path = folder / "autoencoder.pt"
    torch.save((module or Autoencoder()).state_dict(), path)
    return path


def convert(folder: Path) -> MethodsConversion:
    """Converts both methods for two runtimes."""
    methods = {name: options(name, inputs) for name, inputs in INPUTS.items()}
    return fuseconv.convert_methods(save(folder), methods, target=["export", "onnx"])

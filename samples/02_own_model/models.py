"""Two small models, each saved in all forms that fuseconv reads."""

from __future__ import annotations

import warnings

import torch
from safetensors.torch import save_file
from torch import nn


def mlp() -> nn.Module:
    """A multilayer perceptron: 32 features in, 8 out."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


class ConvNet(nn.Module):
    """A small residual conv net: images of 3 x 16 x 16 to 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.block = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.stem(image)))
        features = torch.relu(self.block(features) + features)
        return self.head(features.mean((2, 3)))


def conv_net() -> nn.Module:
    """The conv net with weights from a fixed seed."""
    torch.manual_seed(0)
    return ConvNet().eval()


def save_all() -> None:
    """Saves both models in the four forms fuseconv reads besides a Hugging Face folder."""
    examples = {"mlp": torch.randn(4, 32), "conv_net": torch.randn(4, 3, 16, 16)}
    for name, example in examples.items():
        module = {"mlp": mlp, "conv_net": conv_net}[name]()
        batch = torch.export.Dim("batch", min=1, max=256)
        exported = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(exported, f"{name}.pt2")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch deprecates TorchScript; files of it live on
            torch.jit.trace(module, example).save(f"{name}.torchscript.pt")
        torch.save(module, f"{name}.pickle.pt")
        save_file(module.state_dict(), f"{name}.safetensors")


if __name__ == "__main__":
    import models  # a pickle names the module of a class, and a script's own module is called __main__

    models.save_all()

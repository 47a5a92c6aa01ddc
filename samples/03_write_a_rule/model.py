"""A model that blends two tensors with three ops: a + weight * (b - a)."""

import torch
from torch import nn


class Blend(nn.Module):
    def forward(self, old: torch.Tensor, new: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return old + weight * (new - old)


class BlendRelu(Blend):
    def forward(self, old: torch.Tensor, new: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(super().forward(old, new, weight))


def save(model: nn.Module, path: str) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    tensors = tuple(torch.randn(4, 16) for _ in range(3))
    exported = torch.export.export(model.eval(), tensors, dynamic_shapes=({0: batch},) * 3)
    torch.export.save(exported, path)


if __name__ == "__main__":
    save(Blend(), "blend.pt2")

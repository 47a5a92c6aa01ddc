"""Loads the library of the pack, and registers the fake kernels of its ops."""

from pathlib import Path

import torch

torch.ops.load_library(str(Path(__file__).resolve().parent / "libblend.so"))


@torch.library.register_fake("blend::lerp_relu")
def lerp_relu(old: torch.Tensor, fresh: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    del fresh, weight
    return old.new_empty(old.shape)

"""What the models that are timed are made of: an entry, classes of transformers as tensors to tensors, inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Draw = Callable[[tuple[int, ...], torch.Generator], Inputs]


@dataclass(frozen=True)
class Entry:
    """A model at one shape.

    Attributes:
        name: as users know it.
        shape: (batch), (batch, tokens) or the shape of the first input.
        dtype: the one it is timed in when none is asked for.
        build: `(layers) -> module` in float32 that takes tensors and returns a tuple of them; None for all its layers.
        draw: `(shape, generator) -> inputs`, floating ones in float32.
        kind: what onnxruntime.transformers' optimizer calls it; empty where it knows no such models.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    build: Callable[[int | None], nn.Module]
    draw: Draw
    kind: str = ""

    @property
    def at(self) -> str:
        """Name and shape in one word: `bert-base:1x128`."""
        return f"{self.name}:{'x'.join(map(str, self.shape))}"

    def made(self, dtype: torch.dtype, layers: int | None) -> tuple[nn.Module, Inputs]:
        """Returns the module and inputs for it, on the CPU, the same every time."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            module = self.build(layers).eval().requires_grad_(False).to(dtype)
        return module, self.inputs(dtype)

    def inputs(self, dtype: torch.dtype) -> Inputs:
        """Returns inputs on the CPU, the same every time."""
        inputs = self.draw(self.shape, torch.Generator().manual_seed(0))
        return tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)


class Tensors(nn.Module):
    """A model of the transformers library as tensors in, a tuple of tensors out."""

    def __init__(self, model: nn.Module, takes: Sequence[str], gives: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.takes = tuple(takes)
        self.gives = tuple(gives)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs named."""
        results = self.model(**dict(zip(self.takes, inputs, strict=True)))
        return tuple(results[name] for name in self.gives)


def hub(
    model: str,
    config: str,
    takes: Sequence[str],
    gives: Sequence[str] = ("last_hidden_state",),
    layers: str = "num_hidden_layers",
    **sizes: Any,
) -> Callable[[int | None], nn.Module]:
    """Returns what builds a model of the transformers library; `layers` names the number of its layers, if one does."""

    def build(count: int | None) -> nn.Module:
        import transformers

        chosen = {layers: count} if count is not None and layers else {}
        made = getattr(transformers, config)(**{**sizes, **chosen})
        return Tensors(getattr(transformers, model)(made), takes, gives)

    return build


class Single(nn.Module):
    """One tensor as a tuple."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns `(x,)`."""
        return (x,)


def noise(*rest: int) -> Draw:
    """Returns what draws normal values of the shape and the sizes after it."""
    return lambda shape, generator: (torch.randn(*shape, *rest, generator=generator),)

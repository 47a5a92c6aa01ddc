"""What the models that are timed are made of: an entry, classes of transformers as tensors to tensors, inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Draw = Callable[[tuple[int, ...], torch.Generator], Inputs]
Build = Callable[[int | None], nn.Module]


@dataclass(frozen=True)
class Axis:
    """A dim of the inputs that changes from call to call.

    Attributes:
        name: as in the contract of a bundle.
        sizes: its values; their step is that of the contract.
        at: which dim of an input it is.
        inputs: how many of the first inputs have it; None for all.
    """

    name: str
    sizes: range
    at: int = 0
    inputs: int | None = None


@dataclass(frozen=True)
class Entry:
    """A model at one shape, and the sizes among which it is called where they change.

    Attributes:
        name: as users know it.
        shape: (batch), (batch, tokens) or the shape of the first input.
        dtype: the one it is timed in when none is asked for.
        build: `(layers) -> module` in float32 that takes tensors and returns a tuple of them; None for all its layers.
            A model of several stages has at most so many blocks in each.
        draw: `(shape, generator) -> inputs`, floating ones in float32.
        axes: what changes.
        kind: what onnxruntime.transformers' optimizer calls it; empty where it knows no such models.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    build: Build
    draw: Draw
    axes: tuple[Axis, ...]
    kind: str = ""

    @property
    def at(self) -> str:
        """Name and shape in one word: `bert-base:1x128`."""
        return f"{self.name}:{'x'.join(map(str, self.shape))}"

    def made(self, dtype: torch.dtype, layers: int | None) -> tuple[nn.Module, Inputs]:
        """Returns the module and inputs for it, on the CPU, the same every time."""
        return self.module(dtype, layers), self.inputs(dtype)

    def module(self, dtype: torch.dtype, layers: int | None) -> nn.Module:
        """Returns the module, on the CPU, the same every time."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            module = self.build(layers).eval().requires_grad_(False)
        return module._apply(lambda one: one.to(dtype) if one.is_floating_point() else one)

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
        """Returns the outputs named; all of a model that returns one tensor."""
        results = self.model(**dict(zip(self.takes, inputs, strict=True)))
        return tuple(results[name] for name in self.gives) if self.gives else (results,)


def hub(
    model: str,
    takes: Sequence[str],
    gives: Sequence[str] = ("last_hidden_state",),
    layers: str = "num_hidden_layers",
    config: str = "",
    part: str = "",
    **sizes: Any,
) -> Build:
    """Returns what builds a model of the transformers library.

    Args:
        model: its class.
        takes: the names of its inputs.
        gives: the names of those of its outputs that are returned; none for a model that returns one tensor.
        layers: the field of its configuration that holds the number of layers, or of blocks in each stage, or several
            such fields, with spaces between; empty if there is none.
        config: the class of its configuration, if it is not named after the model.
        part: the submodule that is taken; empty for the model.
        **sizes: the fields of its configuration that are not the default.
    """

    def build(count: int | None) -> nn.Module:
        import transformers

        configuration = getattr(transformers, config or re.sub(r"(Model|For[A-Z].*)$", "Config", model))
        chosen = sizes
        if count is not None:
            whole = configuration(**sizes)
            chosen = sizes | {name: fewer(getattr(whole, name), count) for name in layers.split()}
        made = getattr(transformers, model)(configuration(**chosen))
        return Tensors(made.get_submodule(part), takes, gives)

    return build


def fewer(layers: Any, count: int | None) -> Any:
    """Returns at most `count` layers, or blocks in each stage: of a number, or of a sequence of them."""
    if count is None:
        return layers
    return [fewer(one, count) for one in layers] if isinstance(layers, Sequence) else min(layers, count)


class Single(nn.Module):
    """One tensor as a tuple."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns `(x,)`."""
        return (x,)


def noise(*rest: int) -> Draw:
    """Returns what draws normal values of the shape and the sizes after it."""
    return lambda shape, generator: (torch.randn(*shape, *rest, generator=generator),)


def ids(below: int, *, masked: bool = False) -> Draw:
    """Returns what draws tokens [batch, tokens]; `masked` adds an attention mask with ones before zeros in each row."""

    def draw(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
        tokens = torch.randint(below, shape, generator=generator)
        return (tokens, mask(shape, generator)) if masked else (tokens,)

    return draw


def mask(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws a mask [batch, length] of i64: ones before zeros, at least half of each row."""
    lengths = torch.randint(shape[1] // 2, shape[1] + 1, (shape[0], 1), generator=generator)
    return (torch.arange(shape[1]) < lengths).long()

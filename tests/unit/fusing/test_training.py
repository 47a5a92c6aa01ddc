"""A model trained fused and unfused, from the same seed on the same data, learns the same.

The loss curve is compared like any output (docs/numerics.md). The fp64 reference is the same training in float64, where
rounding is 2^29 times finer than in f32. The error of the fused curve against it may exceed that of the unfused curve
by at most the factor in the table. The tolerance thus follows from the rounding errors of this training and their
growth over 200 steps; no number is chosen here. The curves of several seeds are compared together, because the error of
one training is the sum of few random numbers, and the ratio of two such sums varies.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

import fuseconv
from fuseconv.numerics.tolerance import compare

STEPS, BATCH, WIDTH, SEEDS = 200, 128, 64, 4


class Calls(TorchDispatchMode):
    """Counts the calls of fused ops."""

    fused = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.fused += func.namespace == "fuseconv"
        return func(*args, **(kwargs or {}))


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    )


def by_fuse(model: nn.Module, x: Tensor) -> nn.Module:
    return fuseconv.fuse(model, x)


def by_modules(model: nn.Sequential, _: Tensor) -> nn.Module:
    linears = (layer for layer in model if isinstance(layer, nn.Linear))
    return nn.Sequential(*map(fuseconv.nn.LinearAct.from_linear, linears, ("gelu", "relu", "none")))


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
}


def curve(model: nn.Module, called: nn.Module, optimizer: str, data: tuple[Tensor, Tensor], low: bool) -> Tensor:
    """Trains; returns the loss of every step."""
    inputs, targets = data
    chosen = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for step in range(STEPS):
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            y = called(inputs[rows])
        loss = nn.functional.mse_loss(y.to(targets.dtype), targets[rows])
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def drawn(seed: int) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    model, x = perceptron(), torch.randn(4 * BATCH, WIDTH)
    return model, (x, torch.tanh(x @ torch.randn(WIDTH, WIDTH) / WIDTH**0.5))


@functools.cache
def fp64(seed: int, optimizer: str) -> Tensor:
    """The curve of the model itself in float64."""
    model, (inputs, targets) = drawn(seed)
    exact = copy.deepcopy(model).double()
    return curve(exact, exact, optimizer, (inputs.double(), targets.double()), low=False)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("low", [False, True], ids=["f32", "bf16_autocast"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_learns_the_same(optimizer: str, low: bool) -> None:
    curves: dict[Callable[..., nn.Module] | None, list[Tensor]] = {None: [], by_fuse: [], by_modules: []}
    for fused, found in curves.items():
        for seed in range(SEEDS):
            model, data = drawn(seed)
            called: nn.Module = model
            if fused is not None:
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    called = fused(model, data[0][:BATCH])
                    with Calls() as calls:
                        called(data[0][:BATCH])
                assert calls.fused >= 2
            found.append(curve(model, called, optimizer, data, low))
    original = curves.pop(None)
    assert all(learned[-1] < 0.7 * learned[0] for learned in original), "the model learns"
    exact = torch.cat([fp64(seed, optimizer) for seed in range(SEEDS)])
    for fused, found in curves.items():
        assert fused is not None
        row = compare(torch.cat(found), torch.cat(original), exact)
        assert row.ok, f"{fused.__name__}: {row.reason}"

"""A fused module returns copies where the model returns copies, also if a rule removes the op that copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseconv


class Copies(nn.Module):
    """Returns copies of an input, a weight and a result, which rules take for the values that they copy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(x + self.weight)
        halves = x.split(4, 1)
        return (
            y,
            y.clone(),
            x.clone(),
            x * 1,
            x / 1,
            x.reshape(-1).clone(),
            x[:, :4].clone(),
            torch.cat(halves, 1),
            self.weight.clone(),
            self.weight * 1,
            x.permute(1, 0).permute(1, 0).clone(),
            # and aliases, which stay what they are
            x,
            x.view(-1),
            x[:, :4],
            y.view(-1),
            self.weight.view(2, 4),
        )


def fused(model: nn.Module, x: Tensor) -> Callable[..., Any]:
    module = fuseconv.fuse(model, x)
    assert module.plan.counts()["no-op-clone"] > 0
    return module


def compiled(model: nn.Module, x: Tensor) -> Callable[..., Any]:
    return torch.compile(model, backend="fuseconv", options={"inner": "eager"})


def aliases(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """The pairs of tensors that share memory."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return {(one, other) for other in range(len(places)) for one in range(other) if places[one] == places[other]}


@pytest.mark.parametrize("made", [fused, compiled])
def test_an_output_is_an_alias_only_if_it_is_one_in_the_model(made: Callable[..., Callable[..., Any]]) -> None:
    torch.manual_seed(0)
    model, x = Copies().eval(), torch.randn(3, 8)
    with torch.no_grad():
        expected, found = model(x), made(model, x)(x)
    assert aliases([x, model.weight, *found]) == aliases([x, model.weight, *expected])
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0)

"""Rules and ops that write in place: a site is taken where nothing else reads what was written over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.programs import Function, capture, run
from torch import Tensor
from torch.nn import functional

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.rule import Rule


def write_to_a_view(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    view = y[0]
    y.relu_()
    return view + 1, y.sum()


def write_to_an_input(self: Any, x: Tensor) -> Tensor:
    x.relu_()
    return x + 1


def write_after(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = functional.linear(x, self.w, self.b)
    y = functional.gelu(h)
    h.add_(1)
    return y, h


def write_between(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = x + 1
    view = h.view(-1)
    y = functional.linear(h, self.w, self.b)
    h.mul_(2)
    return functional.gelu(y), view


def write_to_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.state.add_(1)
    return functional.gelu(functional.linear(x, self.w, self.state))


def write_through_dropout(self: Any, x: Tensor) -> Tensor:
    y = functional.dropout(x, 0.5, training=False)
    y.add_(1)
    return y * 2


def write_in_a_chain(self: Any, x: Tensor) -> Tensor:
    y = functional.linear(x, self.w, self.b)
    y += x
    return functional.relu(y, inplace=True)


def write_only_to_its_own(self: Any, x: Tensor) -> Tensor:
    return functional.relu(x + self.b, inplace=True)


@pytest.mark.parametrize(
    ("forward", "counts"),
    [
        (write_to_a_view, {}),
        (write_to_an_input, {}),
        (write_after, {"in-place": 1}),
        (write_between, {}),
        (write_to_a_buffer, {"linear-act": 1}),
        (write_through_dropout, {}),
        (write_in_a_chain, {"in-place": 2, "linear-sum-act": 1}),
        (write_only_to_its_own, {"bias-act": 1, "in-place": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_writes_in_place(default_rules: tuple[Rule, ...], forward: Callable[..., Any], counts: dict[str, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    w, b, x = (torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in ((8, 8), (8,), (3, 8)))
    module = Function(forward, {"w": w, "b": b}, {"state": b.clone()})
    program = capture(module, x)
    found = plan(program, default_rules, device="cpu", targets=())
    assert found.counts() == counts
    torch.testing.assert_close(run(rewrite(program, found)), run(program))

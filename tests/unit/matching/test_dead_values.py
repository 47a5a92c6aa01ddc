"""Values without users, and constants shared by several steps: the plan is tested and executed."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from fuseconv.matching.rewrite import rewrite
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule

Split = Callable[[Tensor, int, int], Sequence[Tensor]]
"""Splits what one layer gives for the queries, keys and values: (packed, batch, length)."""


class Heads(nn.Module):
    """Two attentions of one input: one weight is [out, in], the other [in, out]."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.packed = nn.Linear(16, 48)
        self.weight = nn.Parameter(torch.randn(16, 48) * 0.2)
        self.bias = nn.Parameter(torch.randn(48))
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.packed(x)) + self.attend(x @ self.weight + self.bias)

    def attend(self, packed: Tensor) -> Tensor:
        batch, length, _ = packed.shape
        query, key, value = self.split(packed, batch, length)
        scores = (query @ key.transpose(-1, -2) * 8**-0.5).softmax(-1)
        return (scores @ value).transpose(1, 2).reshape(batch, length, 16)


def unbound(packed: Tensor, batch: int, length: int) -> tuple[Tensor, ...]:
    return packed.view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)


def chunked(packed: Tensor, batch: int, length: int) -> list[Tensor]:
    return [part.view(batch, length, 2, 8).transpose(1, 2) for part in packed.chunk(3, -1)]


@pytest.mark.parametrize("split", [unbound, chunked])
def test_a_constant_of_several_steps_is_there_before_the_first(split: Split, default_rules: tuple[Rule, ...]) -> None:
    program = programs.capture(Heads(split), torch.randn(2, 5, 16))
    found = checked_plan(program, default_rules, device="cpu", targets=())
    assert found.counts()["attention"] == 2
    assert found.rejected == ()
    torch.testing.assert_close(programs.run(rewrite(program, found)), programs.run(program))


class Dead(nn.Module):
    """A function of the module whose dropouts keep alive, until a rule removes them, what nothing reads."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def quick_gelu(module: Dead, x: Tensor) -> Tensor:
    hidden = module.first(x)
    active = hidden * torch.sigmoid(1.702 * hidden)
    module.drop(torch.tensordot(active, module.weight, 1))
    return module.second(active)


def quick_gelu_read_twice(module: Dead, x: Tensor) -> Tensor:
    hidden = module.first(x)
    active = hidden * torch.sigmoid(1.702 * hidden)
    module.drop(active.softmax(-1))
    module.drop(module.drop(active) * 2)
    return module.second(active)


def attention(module: Dead, x: Tensor) -> Tensor:
    scores = (x @ x.transpose(-1, -2)).softmax(-1)
    module.drop(scores.exp())
    return module.drop(scores) @ x


def linear_then_activation(module: Dead, x: Tensor) -> Tensor:
    hidden = module.first(x)
    module.drop(hidden.abs())
    return functional.silu(hidden)


def residual_norm(module: Dead, x: Tensor) -> Tensor:
    total = module.first(x) + x
    module.drop(module.second(total))
    return module.norm(total)


DEAD: dict[Callable[[Dead, Tensor], Tensor], str] = {
    quick_gelu: "quick-gelu",
    quick_gelu_read_twice: "quick-gelu",
    attention: "attention",
    linear_then_activation: "linear-act",
    residual_norm: "add-layer-norm",
}


@pytest.mark.parametrize("function", DEAD, ids=lambda function: function.__name__)
def test_what_a_step_leaves_without_readers_hinders_no_later_step(
    function: Callable[[Dead, Tensor], Tensor], default_rules: tuple[Rule, ...]
) -> None:
    program = programs.capture(Dead(function), torch.randn(2, 5, 8))
    found = checked_plan(program, default_rules, device="cpu", targets=())
    assert found.counts()[DEAD[function]] == 1
    rewritten = rewrite(program, found)
    assert not any(node.target is torch.ops.aten.dropout.default for node in rewritten.exported.graph.nodes)
    pairs = zip(pytree.tree_leaves(programs.run(rewritten)), pytree.tree_leaves(programs.run(program)), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected)


WRITES = {
    "a result that nothing reads": lambda x: (torch.relu_(x + 1), x * 2)[1],
    "a view written, and its base read": lambda x: _written(x, lambda base: base.transpose(0, 1).mul_(2.0)),
    "the base written, and read": lambda x: _written(x, lambda base: base.sigmoid_()),
    "an item written": lambda x: _written(x, lambda base: base[:, :1].add_(1.0)),
}


def _written(x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    base = x + 1
    write(base)
    return base * 3


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_result_nothing_reads_is_tried_as_any_other(name: str, default_rules: tuple[Rule, ...]) -> None:
    program = programs.capture(programs.Function(lambda _, x: WRITES[name](x)), torch.randn(5, 4))
    found = checked_plan(program, default_rules, device="cpu", targets=())
    assert [miss.reason for miss in found.rejected] == []
    torch.testing.assert_close(programs.run(rewrite(program, found)), programs.run(program))

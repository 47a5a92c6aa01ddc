"""The classes of matches: equal layers are one, names stay from capture to capture, and what depends goes together."""

from __future__ import annotations

import math
import re

import pytest
import torch
from support.small_bundle import program
from torch import Tensor, nn

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Choice
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule
from fuseconv.tuning.classes import Classes
from fuseconv.tuning.recorded import recorded, replayed, with_choices

INPUTS = ("x=f32[batch:1..16,16]",)


class Layer(nn.Module):
    """A feed-forward layer; `spelled` writes its GELU out."""

    def __init__(self, spelled: bool) -> None:
        super().__init__()
        self.up, self.down, self.norm, self.spelled = nn.Linear(16, 300), nn.Linear(300, 16), nn.LayerNorm(16), spelled

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2))) if self.spelled else nn.functional.gelu(h)
        return self.norm(x + self.down(h))


def layers(count: int, *, spelled: bool = False) -> Program:
    return program(nn.Sequential(*(Layer(spelled) for _ in range(count))), INPUTS)


def classes_of(captured: Program, rules: tuple[Rule, ...]) -> Classes:
    return Classes.of(captured, plan(captured, rules, device="cpu", targets=()))


def test_equal_layers_are_one_class_of_any_number(default_rules: tuple[Rule, ...]) -> None:
    few, many = (classes_of(layers(count), default_rules) for count in (2, 4))
    assert few.inserting == many.inserting
    assert sorted(name.partition("(")[0] for name in many.inserting) == ["add-layer-norm", "linear-act"]
    assert len(many.names) == 2 * len(few.names)
    assert all(many.sizes[name] == 2 * few.sizes[name] for name in few.inserting)
    (linear,) = (name for name in many.inserting if name.startswith("linear-act"))
    assert "x: f32[batch, 16]" in linear
    assert 'act: "gelu"' in linear


def test_another_shape_or_layout_is_another_class(default_rules: tuple[Rule, ...]) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 16)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return torch.relu(self.a(x)), torch.relu(self.b(x)), torch.relu(self.c(y.transpose(0, 1)))

    found = classes_of(program(Two(), (*INPUTS, "y=f32[16,batch]")), default_rules)
    linear = [name for name in found.inserting if name.startswith("linear-act")]
    assert len(linear) == 3
    assert sum("with strides 1, batch" in name for name in linear) == 1


def test_a_name_has_no_node_in_it(default_rules: tuple[Rule, ...]) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(x) * torch.exp(x)  # what is computed twice is found by a built-in matcher

    captured = program(Twice(), INPUTS)
    (name,) = classes_of(captured, default_rules).every
    words = set(re.findall(r"\w+", name.replace("aten.exp", "")))
    assert not words & {node.name for node in captured.exported.graph.nodes}


def test_what_is_built_on_a_class_is_left_alone_with_it(default_rules: tuple[Rule, ...]) -> None:
    captured = layers(2, spelled=True)
    found = classes_of(captured, default_rules)
    (gelu,) = (name for name in found.every if name.startswith("gelu-erf"))
    left = found.without({gelu})
    assert {name.partition("(")[0] for name in left} >= {"gelu-erf", "linear-act"}
    assert found.without(left) == left
    assert found.without(found.every) == found.every


@pytest.mark.parametrize("spelled", [False, True])
def test_without_any_class_the_program_computes_the_same(spelled: bool, default_rules: tuple[Rule, ...]) -> None:
    captured = layers(2, spelled=spelled)
    found = classes_of(captured, default_rules)
    (x,) = captured.examples
    (expected,) = captured.exported.module()(x)
    for name in found.every:
        partly = rewrite(captured, found.plan_without(found.without({name})))
        torch.testing.assert_close(partly.exported.module()(x)[0], expected)


def test_choices_are_recorded_by_class_and_replayed_in_another_capture(default_rules: tuple[Rule, ...]) -> None:
    captured = layers(2)
    found = classes_of(captured, default_rules)
    norm, linear = found.inserting
    choices = {
        "aoti": {norm: Choice(False, 3.0, 2.0, 0.1), linear: Choice(True, 3.0, 4.0, 0.1)},
        "export": {linear: Choice(False, 9.0, 8.0, 0.1)},
    }
    chosen = with_choices(found.plan, found, choices)
    assert recorded(captured, chosen) == choices
    again = layers(2)
    other = replayed(again, plan(again, default_rules, device="cpu", targets=()), choices)
    assert recorded(again, other) == choices
    assert other.of("aoti").counts() == {linear.partition("(")[0]: 2}
    assert other.of("export").counts() == {norm.partition("(")[0]: 2}
    assert other.of("onnx").counts() == other.counts()

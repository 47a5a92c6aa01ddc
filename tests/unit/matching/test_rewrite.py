"""Executing plans: generated, edited by hand, and the metadata of the result."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs, small_bundle
from support.programs import Function, capture, run
from torch import Tensor
from torch.nn import functional

from fuseconv.errors import RuleError
from fuseconv.matching.plan import Plan, plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.proof.example import example_program
from fuseconv.rulebook.rule import Rule

LINES = [
    "x: f64[n, 8]",
    "w: parameter f64[4, 8]",
    "b: parameter f64[4]",
    "i = aten.div.Tensor(x, 1.4142135623730951)",
    "e = aten.erf.default(i)",
    "s = aten.add.Tensor(e, 1)",
    "m = aten.mul.Tensor(x, s)",
    "g = aten.mul.Tensor(m, 0.5)",
    "h = aten.linear.default(g, w)",
    "k = aten.add.Tensor(h, b)",
    "y = aten.relu.default(k)",
    "z = aten.layer_norm.default(y, [4])",
    "o = aten.silu.default(z)",
    "return o",
]


@pytest.fixture(scope="module")
def planned(default_rules: tuple[Rule, ...]) -> tuple[Program, Plan]:
    program = example_program(LINES)
    return program, plan(program, default_rules, device="cpu", targets=())


def edited(found: Plan, number: int, **changes: Any) -> Plan:
    steps = list(found.steps)
    steps[number] = replace(steps[number], **changes)
    return Plan(tuple(steps))


def test_the_plan_of_the_example(planned: tuple[Program, Plan]) -> None:
    program, found = planned
    assert [step.rule for step in found.steps] == ["gelu-erf", "linear-bias", "linear-act", "layer-norm-act"]
    torch.testing.assert_close(run(rewrite(program, found)), run(program))


@pytest.mark.parametrize("removed", [{0}, {2}, {3}, {1, 2}, {0, 3}, {0, 1, 2, 3}])
def test_steps_that_nothing_needs_may_be_removed(planned: tuple[Program, Plan], removed: set[int]) -> None:
    program, found = planned
    steps = [step for number, step in enumerate(found.steps) if number not in removed]
    fused = rewrite(program, Plan(tuple(steps)))
    torch.testing.assert_close(run(fused), run(program))


def test_a_step_whose_node_an_earlier_removed_step_makes(planned: tuple[Program, Plan]) -> None:
    program, found = planned
    with pytest.raises(RuleError) as caught:
        rewrite(program, Plan(found.steps[:1] + found.steps[2:]))
    assert "expected add_1 to call aten.linear.default, found aten.add.Tensor" in caught.value.what
    assert "rule linear-act" in caught.value.where
    assert "/steps/1" in caught.value.where


def off(found: Plan, *numbers: int) -> Plan:
    """Returns a plan with steps that are not executed."""
    return Plan(tuple(replace(step, apply=number not in numbers) for number, step in enumerate(found.steps)))


def refusal(program: Program, found: Plan) -> RuleError | None:
    """Returns the error of executing a plan, None where it is executed."""
    try:
        rewrite(program, found)
    except RuleError as problem:
        return problem
    return None


THROUGH = [
    "x: f64[n, 8]",
    "w: parameter f64[8, 8]",
    "d = aten.dropout.default(x, 0.1, False)",
    "c = aten.contiguous.default(d)",
    "h = aten.linear.default(c, w)",
    "r = aten.relu.default(h)",
    "s = aten.dropout.default(r, 0.5, False)",
    "v = aten.linear.default(c, w)",
    "k = aten.sigmoid.default(s)",
    "m = aten.mul.Tensor(s, k)",
    "y = aten.add.Tensor(m, v)",
    "z = aten.layer_norm.default(y, [8])",
    "return z",
]


@pytest.mark.parametrize("lines", [LINES, THROUGH], ids=["spelled", "through"])
def test_any_one_step_may_be_left_out_and_what_an_error_says_to_leave_out_with_it(
    lines: list[str], default_rules: tuple[Rule, ...]
) -> None:
    program = example_program(lines)
    found = plan(program, default_rules, device="cpu", targets=())
    for number, step in enumerate(found.steps):
        problem = refusal(program, off(found, number))
        with_it = re.search(r'"apply": false on steps? ([\d, ]+) too', problem.fix) if problem else None
        numbers = map(int, with_it[1].split(",")) if with_it else ()
        torch.testing.assert_close(run(rewrite(program, off(found, number, *numbers))), run(program))
        assert problem is None or f"enable step {number} (rule {step.rule})" in problem.fix


@pytest.mark.parametrize("left_out", ["eval-dropout", "views", "duplicates"])
def test_steps_that_nothing_is_built_on_are_left_out_alone(left_out: str, default_rules: tuple[Rule, ...]) -> None:
    """What reads a value through a step that is left out reads what was there before it."""
    program = example_program(THROUGH)
    found = plan(program, default_rules, device="cpu", targets=())
    assert left_out in found.counts()
    numbers = [number for number, step in enumerate(found.steps) if step.rule == left_out]
    fused = rewrite(program, off(found, *numbers))
    assert rewrite(program, Plan(off(found, *numbers).applied)).exported.graph.nodes
    torch.testing.assert_close(run(fused), run(program))
    assert "silu" in found.counts()


def test_a_step_left_out_does_not_match(planned: tuple[Program, Plan]) -> None:
    _, found = planned
    assert off(found, 0).counts() == {rule: count for rule, count in found.counts().items() if rule != "gelu-erf"}


def test_what_a_step_is_built_on_is_named(planned: tuple[Program, Plan]) -> None:
    program, found = planned
    with pytest.raises(RuleError) as caught:
        rewrite(program, off(found, 1))
    assert "expected add_1 to call aten.linear.default, found aten.add.Tensor" in caught.value.what
    assert caught.value.where == "step 2 of the plan, rule linear-act (/steps/2)"
    assert caught.value.fix.startswith("enable step 1 (rule linear-bias), which this step builds on, or set")


BOUND = {"x": {"node": "mul_1"}, "w": {"node": "p_w"}, "b": {"node": "p_b"}, "act": {"value": "relu"}}

EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "a node that is not there": ({"nodes": ("nothing_add", "relu")}, "nothing"),
    "another op": ({"ops": ("aten.linear.default", "aten.gelu.default")}, "relu to call aten.gelu.default"),
    "an op too few": ({"ops": ("aten.linear.default",)}, "1 ops for 2 nodes"),
    "no nodes": ({"nodes": (), "ops": ()}, "0 ops for 0 nodes"),
    "a stranger": ({"bindings": {**BOUND, "x": {"node": "x"}}}, "x to be an operand of the matched nodes"),
    "a binding of no kind": ({"bindings": {**BOUND, "x": {"nodes": "x"}}}, "a binding as"),
    "a binding left out": ({"bindings": {}}, "not bound"),
    "a result left out": ({"results": {}}, "replaces nothing"),
    "a result outside": ({"results": {"y": "x"}}, "results among the matched nodes"),
    "another dtype": (
        {"replace": ("y = aten.to.dtype(x, f32)",), "bindings": {"x": {"node": "mul_1"}}},
        "a replacement with dtype",
    ),
    "no such op": ({"replace": ("y = aten.nothing.default(x)",)}, "aten.nothing.default"),
    "no line": ({"replace": ("y",)}, "the line must be a single assignment"),
    "no such function": ({"replace": ("y = aten.gelu.default(x, approximate=hello(x))",)}, "hello"),
    "arguments that do not fit": (
        {"replace": ("y = aten.mm.default(x, w)",)},
        "arguments that aten.mm.default accepts",
    ),
    "too few results": (
        {"replace": ("_, y = aten.chunk.default(x, 1, -1)",), "bindings": {"x": {"node": "mul_1"}}},
        "2 results of aten.chunk.default",
    ),
    "one result unpacked": (
        {"replace": ("_, y = aten.relu.default(x)",), "bindings": {"x": {"node": "mul_1"}}},
        "2 results of aten.relu.default",
    ),
    "another shape": ({"replace": ("y = aten.relu.default(x)",)}, "a replacement with the shape"),
    "an intermediate that others read": (
        {"nodes": ("add_1",), "ops": ("aten.linear.default",), "results": {}, "replace": ()},
        "no user outside the match",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_step_that_does_not_fit_is_refused(planned: tuple[Program, Plan], edit: str) -> None:
    program, found = planned
    changes, what = EDITS[edit]
    number = next(number for number, step in enumerate(found.steps) if step.rule == "linear-act")
    with pytest.raises(RuleError) as caught:
        rewrite(program, edited(found, number, **changes))
    assert what in str(caught.value)
    assert f"/steps/{number}" in caught.value.where
    assert "rule linear-act" in caught.value.where


def test_names_do_not_depend_on_steps_removed(planned: tuple[Program, Plan]) -> None:
    program, found = planned
    names = {node.name for node in rewrite(program, found).exported.graph.nodes}
    fewer = {node.name for node in rewrite(program, Plan(found.steps[1:])).exported.graph.nodes}
    assert "linear_act_relu" in names & fewer
    assert "layer_norm_act_silu" in names & fewer


def test_a_plan_of_another_program_is_refused(planned: tuple[Program, Plan]) -> None:
    _, found = planned
    with pytest.raises(RuleError, match="does not fit"):
        rewrite(programs.vit(), found)


def test_nodes_carry_where_they_come_from(default_rules: tuple[Rule, ...]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.gelu(functional.linear(x, self.w))

    program = capture(Function(forward, {"w": torch.randn(4, 8)}), torch.randn(3, 8), lines=True)
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    (node,) = [node for node in fused.exported.graph.nodes if "linear_act" in str(node.target)]
    assert node.meta["custom"]["fuseconv"] == [{"rule": "linear-act", "nodes": ["linear", "gelu"]}]
    assert "functional.gelu(functional.linear" in node.meta["stack_trace"]
    assert node.meta["val"].shape[1] == 4


def test_parameters_that_nothing_reads_are_left_out(default_rules: tuple[Rule, ...]) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return functional.relu(functional.linear(x, self.w, self.v)), functional.linear(x, self.w) * 0 + self.unused[0]

    parameters = {name: torch.randn(*shape) for name, shape in (("w", (4, 8)), ("v", (4,)), ("unused", (4,)))}
    program = capture(Function(forward, {**parameters, "never": torch.randn(2)}), torch.randn(3, 8))
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    assert set(program.exported.state_dict) == {"w", "v", "unused", "never"}
    assert set(fused.exported.state_dict) == {"w", "v", "unused"}
    assert fused.exported.state_dict["w"] is program.exported.state_dict["w"]
    torch.testing.assert_close(run(fused), run(program))


def test_tied_weights_stay_tied(default_rules: tuple[Rule, ...], tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 8)
    program = capture(torch.nn.Sequential(layer, torch.nn.ReLU(), layer, torch.nn.GELU()), torch.randn(3, 8))
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    torch.testing.assert_close(run(fused), run(program))
    weights = [tensor for name, tensor in fused.exported.state_dict.items() if name.endswith("weight")]
    assert len({tensor.data_ptr() for tensor in weights}) == 1


def test_outputs_may_repeat_and_be_inputs(default_rules: tuple[Rule, ...]) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = functional.relu(x + x)
        return y, x, y, functional.dropout(y, 0.1, training=False)

    program = capture(Function(forward), torch.randn(3, 8))
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    torch.testing.assert_close(run(fused), run(program))
    fused.exported.validate()


def test_the_result_is_captured_again(default_rules: tuple[Rule, ...]) -> None:
    program = example_program(LINES)
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    again = torch.export.export(fused.exported.module(), program.examples)
    torch.testing.assert_close(again.module()(*program.examples), run(program))


def test_an_empty_plan_changes_nothing() -> None:
    program = example_program(LINES)
    assert str(rewrite(program, Plan(())).exported.graph) == str(program.exported.graph)


def test_guards_on_the_containers_of_the_model_do_not_come_back(default_rules: tuple[Rule, ...]) -> None:
    """They name what the flat calling convention has not, and whoever calls the program as a module runs them."""
    program = small_bundle.program(Function(lambda _, x, y: (x + y).relu()), ["x=f32[batch:1..8,4]", "y=f32[batch,4]"])
    fused = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    inputs = torch.randn(2, 3, 4).unbind()
    torch.testing.assert_close(fused.exported.module()(*inputs), ((inputs[0] + inputs[1]).relu(),))

"""Planning: stages, overlaps, what is left out, and the plan file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import programs
from support.programs import run

from fuseconv.errors import FileError, RuleError
from fuseconv.matching.plan import Plan, plan, read_plan
from fuseconv.proof.example import example_program
from fuseconv.rulebook.rule import Rule
from fuseconv.targets import TARGETS


def rule(name: str, match: Sequence[str], replace: Sequence[str], stage: str = "fuse", **changes: Any) -> Rule:
    base = {"name": name, "stage": stage, "doc": "d", "match": match, "replace": replace}
    return Rule.model_validate({**base, **changes})


RESIDUAL = ["x: f64[n, 8]", "w: parameter f64[8, 8]", "h = aten.linear.default(x, w)", "s = aten.add.Tensor(h, x)"]


def test_of_overlapping_sites_the_earlier_rule_wins_a_tie(default_rules: tuple[Rule, ...]) -> None:
    program = example_program([*RESIDUAL, "y = aten.layer_norm.default(s, [8])", "return y"])
    found = plan(program, default_rules, device="cpu", targets=())
    assert found.counts() == {"add-layer-norm": 1}
    (miss,) = [miss for miss in found.misses if miss.rule == "linear-residual"]
    assert "overlaps with a match of rule add-layer-norm at layer_norm, which comes first" in miss.reason
    two = [rule for rule in default_rules[::-1] if rule.name in ("add-layer-norm", "linear-residual")]
    assert plan(program, two, device="cpu", targets=()).counts() == {"linear-residual": 1}


NORMS = {"layer": "aten.layer_norm.default({}, [8])", "rms": "aten.rms_norm.default({}, [8], v, 1e-6)"}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("results", "counts"),
    [("y", {"add-{}-norm": 1}), ("y, s", {"linear-residual": 1}), ("y, r", {"add-{}-norm-sum": 1})],
    ids=["the norm alone reads the sum", "the sum is kept", "no linear layer is in front of the sum"],
)
def test_who_adds_a_residual(norm: str, results: str, counts: dict[str, int], default_rules: tuple[Rule, ...]) -> None:
    lines = [*RESIDUAL, "r = aten.add.Tensor(x, x)", "v: parameter f64[8]"]
    program = example_program(
        [*lines, f"y = {NORMS[norm].format('r' if 'r' in results else 's')}", f"return {results}"]
    )
    found = plan(program, default_rules, device="cpu", targets=()).counts()
    adding = {name: count for name, count in found.items() if name.startswith(("add-", "linear-residual"))}
    assert adding == {name.format(norm): count for name, count in counts.items()}


def test_of_overlapping_sites_the_one_that_saves_more_wins(default_rules: tuple[Rule, ...]) -> None:
    lines = [*RESIDUAL[:3], "g = aten.gelu.default(h)", "s = aten.add.Tensor(g, x)"]
    program = example_program([*lines, "y = aten.layer_norm.default(s, [8])", "return y"])
    found = plan(program, default_rules[::-1], device="cpu", targets=())
    assert found.counts() == {"linear-act-residual": 1}
    assert any("saves 2 ops instead of 1" in miss.reason for miss in found.misses)


def test_stages_run_in_order_each_to_its_fixpoint() -> None:
    rules = [
        rule("c", ["y = aten.abs.default(x)"], ["y = aten.relu.default(x)"]),
        rule("b", ["y = aten.neg.default(x)"], ["y = aten.abs.default(x)"], "structure"),
        rule("a", ["a = aten.exp.default(x)", "y = aten.exp.default(a)"], ["y = aten.exp.default(x)"], "canonical"),
        rule("a2", ["y = aten.exp.default(x)"], ["y = aten.neg.default(x)"], "structure"),
    ]
    lines = ["x: f64[n]", *[f"x{k + 1} = aten.exp.default(x{k or ''})" for k in range(5)], "return x5"]
    found = plan(example_program(lines), rules, device="cpu", targets=())
    assert [step.stage for step in found.steps] == sorted(
        (step.stage for step in found.steps), key=["canonical", "structure", "fuse"].index
    )
    assert found.counts() == {"a": 4, "a2": 1, "b": 1, "c": 1}


def test_rules_that_feed_each_other_through_other_ops_are_stopped() -> None:
    grow = rule(
        "grow",
        ["a = aten.neg.default(x)", "y = aten.neg.default(a)"],
        ["b = aten.abs.default(x)", "y = aten.neg.default(b)"],
        "canonical",
    )
    back = rule("back", ["y = aten.abs.default(x)"], ["y = aten.neg.default(x)"], "canonical")
    lines = ["x: f64[n]", "a = aten.neg.default(x)", "y = aten.neg.default(a)", "return y"]
    with pytest.raises(RuleError, match=r"stage canonical does not terminate: back, grow"):
        plan(example_program(lines), [grow, back], device="cpu", targets=())


EXP = (["y = aten.exp.default(x)"], ["y = aten.exp2.default(x)"])

LIMITED = rule("limited", ["y = aten.neg.default(x)"], ["y = aten.mul.Tensor(x, -1)"])


@pytest.mark.parametrize(
    ("limits", "kwargs", "applies"),
    [
        ({}, {"device": "cpu", "targets": ["onnx"]}, True),
        ({"devices": ["cuda"]}, {"device": "cpu", "targets": []}, False),
        ({"devices": ["cuda"]}, {"device": "cuda", "targets": []}, True),
        ({"targets": ["onnx"]}, {"device": "cpu", "targets": ["onnx"]}, True),
        ({"targets": ["onnx"]}, {"device": "cpu", "targets": ["onnx", "aoti"]}, False),
        ({"allow": "negation"}, {"device": "cpu", "targets": []}, False),
        ({"allow": "negation"}, {"device": "cpu", "targets": [], "allow": ["negation"]}, True),
    ],
)
def test_a_rule_limits_itself(limits: dict[str, Any], kwargs: dict[str, Any], applies: bool) -> None:
    limited = LIMITED.model_copy(update=limits)
    program = example_program(["x: f64[n]", "y = aten.neg.default(x)", "return y"])
    found = plan(program, [limited], **kwargs)
    assert bool(found.steps) == applies
    silent = applies or not kwargs["targets"]
    assert [miss.reason for miss in found.misses] == (
        [] if silent else ["rule limited supports only onnx, but this conversion also writes aoti"]
    )


def test_a_rule_may_name_every_target_and_gives_way_where_it_is_not_for_all(tmp_path: Path) -> None:
    every = rule("every", *EXP, targets=list(TARGETS))
    some = rule("some", *EXP, targets=["export", "onnx-plugin"])
    program = example_program(["x: f64[n]", "y = aten.exp.default(x)", "return y"])
    found = plan(program, [some, every], device="cpu", targets=list(TARGETS))
    assert found.counts() == {"every": 1}
    assert (
        "some supports only export, onnx-plugin, but this conversion also writes aoti, onnx, torchscript"
        in found.misses[0].reason
    )
    assert plan(program, [some, every], device="cpu", targets=["onnx-plugin"]).counts() == {"some": 1}


def test_misses_that_say_nothing_are_left_out(default_rules: tuple[Rule, ...]) -> None:
    program = example_program(["x: f64[n]", "y = aten.neg.default(x)", "z = aten.relu.default(y)", "return z"])
    assert plan(program, default_rules, device="cpu", targets=()).misses == ()


def test_a_plan_is_the_same_each_time_and_survives_its_file(default_rules: tuple[Rule, ...], tmp_path: Path) -> None:
    program = programs.bert()
    found = plan(program, default_rules, device="cpu", targets=())
    assert found == plan(program, default_rules, device="cpu", targets=())
    (tmp_path / "plan.json").write_text(found.to_json())
    assert read_plan(tmp_path / "plan.json") == found


def test_every_place_of_twelve_layers_is_planned(default_rules: tuple[Rule, ...]) -> None:
    program = programs.bert(layers=12)
    found = plan(program, default_rules, device="cpu", targets=())
    assert found.counts()["add-layer-norm"] == 24
    assert found.counts()["mlp"] == 12
    assert found.counts()["linear-act"] == 1
    assert run(program)


PLAN = {"schema": 1, "steps": [], "misses": []}
STEP = {"rule": "r", "stage": "fuse", "nodes": ["y"], "ops": ["o"], "bindings": {}, "results": {}, "replace": []}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not a plan"),
        ("[]", "not a plan"),
        (json.dumps({**PLAN, "extra": 1}), "/extra"),
        (json.dumps({**PLAN, "mises": []}), "did you mean misses?"),
        (json.dumps({**PLAN, "schema": 2}), "schema 2"),
        (json.dumps({**PLAN, "steps": [{**STEP, "nodes": "y"}]}), "/steps/0/nodes"),
        (json.dumps({**PLAN, "steps": [{**STEP, "node": "y"}]}), "/steps/0/node"),
        (json.dumps({**PLAN, "steps": [{"rule": "r"}]}), "the field stage is missing"),
        (json.dumps({**PLAN, "steps": [{**STEP, "apply": "no way"}]}), "(/steps/0/apply)"),
        (json.dumps({**PLAN, "steps": [{**STEP, "aply": False}]}), "did you mean apply?"),
        (json.dumps({**PLAN, "steps": [STEP]}, indent=1).replace('"fuse"', '"fuse"\n"'), "plan.json:7:1 (/steps/0)"),
        ("[" * 100_000, "not a plan"),
    ],
)
def test_a_file_that_is_no_plan(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RuleError) as caught:
        read_plan(tmp_path / "plan.json")
    assert what in str(caught.value)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the plan cannot be read"):
        read_plan(tmp_path / "plan.json")
    assert Plan(()).counts() == {}

"""The default rules: each does what its examples say, each alternative is shown, and wrong variants are detected."""

from collections.abc import Sequence
from typing import Any

import pytest

from fuseconv.errors import RuleError
from fuseconv.matching.graph import Workspace
from fuseconv.matching.loops import check_loops
from fuseconv.matching.match import match
from fuseconv.matching.pattern import check_rule_ops, compile_rule
from fuseconv.matching.search import Index
from fuseconv.proof.example import parse_example
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.rule_check import check_examples, check_rules
from fuseconv.proof.traced import Traced, trace
from fuseconv.rulebook import listed
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import Rule

RULES = {rule.name: rule for rule in load_rules()}

NEVER_MISSES = {"activation-before-views", "assert-metadata", "constants", "in-place", "views"}
NEVER_MISSES |= {"duplicates", "duplicate-rows"}
NEVER_MISSES |= {"add-scalar", "sub-scalar", "mul-scalar", "div-scalar"}
NEVER_MISSES |= {f"{op}-mean-{form}" for op in ("var", "std") for form in ("dim", "correction")}
"""Rules of one op that take it as it is, and those that look at the whole graph."""


def test_the_rules_are_listed_as_they_are_read(default_rules: Sequence[Rule]) -> None:
    expected = [(rule.name, rule.stage, rule.allow) for rule in default_rules]
    assert [(one.name, one.stage, one.allow) for one in listed.own()] == expected
    without = expected[3][0]
    assert [one.name for one in listed.own([without])] == [name for name, *_ in expected if name != without]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_does_what_its_examples_say(name: str, request: pytest.FixtureRequest) -> None:
    rows = check_examples(RULES[name], every_dtype=request.config.getoption("--all"))
    assert [row for row in rows if not row.ok] == []
    assert any(row.check.startswith("hit") for row in rows)
    assert any(row.check.startswith("miss") for row in rows) or name in NEVER_MISSES or name.endswith("-reversed")


def traced_example(lines: Sequence[str]) -> Traced:
    text = parse_example(lines)
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", 0).tensors
    return trace(text, dict(zip(text.parameters, drawn, strict=True)))


def workspace_of(lines: Sequence[str]) -> Workspace:
    traced = traced_example(lines)
    workspace = Workspace(traced)
    workspace.results = traced.results
    return workspace


@pytest.mark.parametrize(
    ("query", "key", "value", "what"),
    [
        ("2, 5, 8", "2, 7, 8", "2, 6, 8", "keys and values of different lengths"),
        ("0, 5, 8", "0, 7, 8", "0, 7, 8", "attention without heads"),
        ("2, 5, 8", "0, 7, 8", "0, 7, 8", "attention without heads"),
    ],
)
def test_attention_that_would_end_the_process_is_not_called(query: str, key: str, value: str, what: str) -> None:
    operands = {"q": query, "k": key, "v": value}
    inputs = [f"{name}: f64[3, {shape}]" for name, shape in operands.items()]
    with pytest.raises(ValueError, match=what):
        traced_example([*inputs, "o = aten.scaled_dot_product_attention.default(q, k, v)", "return o"])


@pytest.mark.parametrize("name", RULES)
def test_every_alternative_is_shown(name: str) -> None:
    rule = RULES[name]
    if rule.merge:
        return  # one member alone is not a match
    graphs = [Index(workspace_of(lines)) for lines in rule.examples.hit]
    shown = [any(match(graph, [pattern])[0] for graph in graphs) for pattern in compile_rule(rule)]
    assert shown == [True] * len(shown)


def test_the_families_together_are_sound() -> None:
    rules = list(RULES.values())
    check_rule_ops(rules)
    check_loops([compile_rule(rule) for rule in rules])


def rule(**changes: Any) -> Rule:
    base = {
        "name": "relu",
        "stage": "fuse",
        "doc": "For tests.",
        "match": ["s = aten.add.Tensor(a, b)", "y = aten.relu.default(s)"],
        "replace": ["y = fuseconv.add_relu.default(a, b)"],
    }
    return Rule.model_validate({**base, **changes})


HIT = ["a: f64[n, 4]", "b: f64[n, 4]", "s = aten.add.Tensor(a, b)", "y = aten.relu.default(s)", "return y"]


@pytest.mark.parametrize(
    ("replace", "detail"),
    [
        ("y = aten.add.Tensor(a, b)", "differs"),  # the relu is lost
        ("y = fuseconv.add_relu.default(a, a)", "differs"),  # an operand is swapped
        ("y = aten.to.dtype(a, f32)", "dtype"),
        ("y = aten.t.default(a)", "shape"),
        ("y = aten.expand.default(a, [2, 2])", "that aten.expand.default accepts"),
        ("y = aten.mm.default(a, b)", "mm"),
    ],
)
def test_a_wrong_rule_fails_its_own_example(replace: str, detail: str) -> None:
    row, *_ = check_rules([rule(replace=[replace], examples={"hit": [HIT]})])
    assert not row.ok
    assert detail in row.detail


def test_a_miss_for_another_reason_fails() -> None:
    miss = {"reason": "same_kind(a, b)", "program": [*HIT[:-1], "z = aten.neg.default(s)", "return y, z"]}
    (row,) = check_rules([rule(examples={"miss": [miss]})])
    assert not row.ok
    assert "no user outside the match" in row.detail
    (row,) = check_rules([rule(examples={"miss": [{**miss, "program": HIT}]})])
    assert not row.ok


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("y = aten.gelv.default(x)", "unknown op aten.gelv.default"),
        ("y = aten.gelu.nothing(x)", "unknown op"),
        ("y = aten.multiply.Tensor(x, x)", "aten.multiply.Tensor is an alias: exported programs call aten.mul.Tensor"),
        ("y = nowhere.gelu.default(x)", "unknown op"),
        ("y = aten.gelu.default(approximate=x)", "is missing the argument self"),
        ("y = aten.gelu.default(x, 'none')", "takes 1 positional"),
        ("y = aten.gelu.default(x, mode='none')", "has no argument mode"),
        ("y = aten.gelu.default(x, self=x)", "given twice"),
        ("y = aten.native_layer_norm.default(x, [4], None, None, 0)", "returns 3 results"),
        ("y, z = aten.gelu.default(x)", "returns 1 results"),
    ],
)
@pytest.mark.parametrize("side", ["match", "replace"])
def test_an_op_that_does_not_fit_its_schema(line: str, what: str, side: str) -> None:
    replace = "y, z = aten.max.dim(x, 0)" if "y, z" in line else "y = aten.relu.default(x)"
    lines = {"match": [replace], "replace": [replace], side: [line]}
    with pytest.raises(RuleError, match=what) as caught:
        check_rule_ops([rule(**lines)])
    assert f"(/{side}/0)" in caught.value.where


def test_an_unknown_op_is_answered_with_the_nearest() -> None:
    with pytest.raises(RuleError) as caught:
        check_rule_ops([rule(match=["y = aten.gelv.default(a)"], replace=["y = aten.relu.default(a)"])])
    assert "aten.gelu.default" in caught.value.fix


RINGS = {
    "there_and_back": [
        ("aten.neg.default(x)", "aten.mul.Tensor(x, -1)"),
        ("aten.mul.Tensor(x, -1)", "aten.neg.default(x)"),
    ],
    "itself": [("aten.mul.Tensor(a, b)", "aten.mul.Tensor(b, a)")],
    "three": [
        ("aten.neg.default(x)", "aten.abs.default(x)"),
        ("aten.abs.default(x)", "aten.relu.default(x)"),
        ("aten.relu.default(x)", "aten.neg.default(x)"),
    ],
}


@pytest.mark.parametrize("ring", RINGS)
def test_rules_that_go_round_are_refused(ring: str) -> None:
    rules = [
        rule(name=f"r{number}", stage="canonical", match=[f"y = {match}"], replace=[f"y = {replace}"])
        for number, (match, replace) in enumerate(RINGS[ring])
    ]
    with pytest.raises(RuleError, match="rewrite cycle") as caught:
        check_loops([compile_rule(rule) for rule in rules])
    assert all(rule.name in caught.value.what for rule in rules)


@pytest.mark.parametrize("made", ["", ": constant"])
def test_a_rule_that_fills_in_an_operand_does_not_go_round(made: str) -> None:
    """The result of an op is a tensor: it cannot be the None that the rule requires."""
    filled = [f"b{made} = aten.relu.default(u)", "y = aten.batch_norm.default(x, b, e, u, z, False, 0.1, 1.0, True)"]
    matched = ["y = aten.batch_norm.default(x, None, e, u, z, False, 0.1, 1.0, True)"]
    check_loops([compile_rule(rule(stage="canonical", match=matched, replace=filled))])


@pytest.mark.parametrize(
    "lines",
    [
        ["x: f99[n]", "return x"],
        ["x: f64[n]", "y = aten.nothing.default(x)", "return y"],
        ["x: f64[n]", "y = aten.relu.default(z)", "return y"],
        ["x: f64[n]", "y = aten.relu.default(x)"],
        ["x: f64[n]", "y = x", "return y"],
        ["x: f64[n, 3]", "w: f64[4, 5]", "y = aten.mm.default(x, w)", "return y"],
    ],
)
def test_an_example_that_is_no_program(lines: list[str]) -> None:
    with pytest.raises(RuleError) as caught:
        check_rules([rule(examples={"hit": [lines]})])
    assert "/examples/hit/0" in caught.value.where

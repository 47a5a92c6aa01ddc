"""Matching: what matches, what does not and why; and that matching changes nothing."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.programs import Function, capture, run
from torch import Tensor
from torch.nn import functional

from fuseconv.errors import RuleError
from fuseconv.matching.graph import Workspace
from fuseconv.matching.match import Match, match
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import compile_rule
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.search import Index
from fuseconv.matching.whole import functional as functional_of
from fuseconv.program.captured import Program
from fuseconv.proof.example import example_program
from fuseconv.rulebook.functions import FUNCTIONS, Constants, rule_function
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import Rule


def rule(
    match: Sequence[str] | Sequence[list[str]], replace: Sequence[str], where: Sequence[str] = (), **changes: Any
) -> Rule:
    base = {"name": "r", "stage": "fuse", "doc": "d", "match": match, "replace": replace, "where": list(where)}
    return Rule.model_validate({**base, **changes})


def find(rule: Rule, program: Program) -> tuple[list[Match], list[NearMiss]]:
    return match(Index(Workspace(program.exported)), compile_rule(rule))


def reason(rule: Rule, program: Program) -> str:
    matches, misses = find(rule, program)
    assert matches == []
    return " | ".join(miss.miss.reason for miss in misses)


LINEAR_RELU = rule(
    ["h = aten.linear.default(x, w, b)", "y = aten.relu.default(h)"],
    ["y = fuseconv.linear_act.default(x, w, b, None, 'relu')"],
)
ADD_RELU = rule(["s = aten.add.Tensor(a, b)", "y = aten.relu.default(s)"], ["y = fuseconv.add_relu.default(a, b)"])
LINEAR = ["x: f64[n, 8]", "w: parameter f64[4, 8]", "b: parameter f64[4]", "h = aten.linear.default(x, w, b)"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([*LINEAR, "y = aten.relu.default(h)", "return y, h"], "an output of the program"),
        (
            [*LINEAR, "y = aten.relu.default(h)", "z = aten.neg.default(h)", "return y, z"],
            "no user outside the match, found neg",
        ),
        ([*LINEAR, "y = aten.gelu.default(h)", "return y"], ""),
        ([*LINEAR, "t = aten.tanh.default(h)", "y = aten.relu.default(t)", "return y"], "found aten.tanh.default"),
        ([*LINEAR[:1], "y = aten.relu.default(x)", "return y"], "found x: f64["),
    ],
)
def test_a_site_that_is_none(lines: list[str], expected: str) -> None:
    assert expected in reason(LINEAR_RELU, example_program(lines))


ONE_AXIS = rule(["m = aten.mean.dim(x, [d])", "y = aten.unsqueeze.default(m, d)"], ["y = aten.mean.dim(x, [d], True)"])


@pytest.mark.parametrize(
    ("mean", "new", "same"),
    [(2, 2, True), (-1, -1, True), (-1, 2, True), (2, -1, True), (1, -2, True), (1, -1, False), (-2, 0, False)],
)
def test_an_axis_is_the_same_from_either_end(mean: int, new: int, same: bool) -> None:
    lines = ["x: f64[n, 6, 6]", f"m = aten.mean.dim(x, [{mean}])", f"y = aten.unsqueeze.default(m, {new})", "return y"]
    matches, misses = find(ONE_AXIS, example_program(lines))
    assert (len(matches), len(misses)) == ((1, 0) if same else (0, 1))


def test_an_axis_of_another_rank_is_another_axis() -> None:
    """Axis -2 of four dims is axis 2. No rule takes it for axis 2 of three dims, which another op moved."""
    twice = rule(
        ["a = aten.softmax.int(x, d)", "u = aten.unsqueeze.default(a, 0)", "y = aten.softmax.int(u, d)"],
        ["y = aten.unsqueeze.default(x, 0)"],
    )
    lines = ["x: f64[n, 6, 6]", "a = aten.softmax.int(x, 2)", "u = aten.unsqueeze.default(a, 0)"]
    program = example_program([*lines, "y = aten.softmax.int(u, -2)", "return y"])
    assert "dim of aten.softmax.int to be d, 2, found -2" in reason(twice, program)


def test_a_miss_names_the_source_line_of_the_model() -> None:
    layer = torch.nn.Linear(8, 4)

    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h = layer(x)
        return torch.nn.ReLU()(h), h  # the line to blame, not torch's own

    program = capture(Function(forward, dict(layer.named_parameters())), torch.randn(3, 8), lines=True)
    _, (near,) = find(LINEAR_RELU, program)
    assert "test_match.py:" in near.miss.where
    assert "in forward" in near.miss.where


@pytest.mark.parametrize("order", ["s, r", "r, s"])
def test_operands_of_a_commutative_op_are_tried_both_ways(order: str) -> None:
    residual = rule(
        ["h = aten.linear.default(x, w)", "y = aten.add.Tensor(h, r)"],
        ["y = fuseconv.linear_act.default(x, w, None, r)"],
        ["same_shape(h, r)"],
    )
    lines = ["x: f64[n, 8]", "r: f64[n, 4]", "w: parameter f64[4, 8]", "s = aten.linear.default(x, w)"]
    (match,), _ = find(residual, example_program([*lines, f"y = aten.add.Tensor({order})", "return y"]))
    assert match.captures["r"].name == "r"


def test_the_second_way_to_match_is_taken_when_the_first_is_refused() -> None:
    residual = rule(
        ["h = aten.linear.default(x, w)", "y = aten.add.Tensor(h, r)"],
        ["y = fuseconv.linear_act.default(x, w, None, r)"],
    )
    lines = ["x: f64[n, 8]", "w: parameter f64[4, 8]", "v: parameter f64[4, 8]"]
    lines += ["f = aten.linear.default(x, w)", "g = aten.linear.default(x, v)", "y = aten.add.Tensor(f, g)"]
    (match,), _ = find(residual, example_program([*lines, "z = aten.neg.default(f)", "return y, z"]))
    assert match.captures["w"].name == "p_v"
    assert match.captures["r"].name == "linear"


def test_alpha_is_not_commuted() -> None:
    doubled = rule(["a = aten.neg.default(x)", "y = aten.add.Tensor(a, x, alpha=k)"], ["y = aten.neg.default(x)"])
    lines = ["x: f64[n, 8]", "a = aten.neg.default(x)"]
    assert find(doubled, example_program([*lines, "y = aten.add.Tensor(x, a)", "return y"]))[0]
    program = example_program([*lines, "y = aten.add.Tensor(x, a, alpha=2)", "return y"])
    assert "expected aten.neg.default, found x" in reason(doubled, program)


def test_a_name_used_twice_is_one_value() -> None:
    square = rule(["y = aten.mul.Tensor(x, x)"], ["y = aten.square.default(x)"])
    assert find(square, example_program(["a: f64[n]", "y = aten.mul.Tensor(a, a)", "return y"]))[0]
    program = example_program(["a: f64[n]", "b: f64[n]", "y = aten.mul.Tensor(a, b)", "return y"])
    assert "to be x, a: f64[" in reason(square, program)


@pytest.mark.parametrize(
    ("written", "in_graph", "is_same"),
    [
        ("0.7071", "0.7071067811865476", True),
        ("0.7071", "0.7085", False),
        ("0.5", "0.5", True),
        ("0.5", "0.5001", False),
        ("2", "2.0", True),
        ("2", "2.0001", False),
        ("0", "0.0", True),
        ("0", "1e-9", False),
        ("-0.7071", "0.7071", False),
        ("inf", "inf", True),
        ("-inf", "inf", False),
        ("1", "True", False),
    ],
)
def test_literals(written: str, in_graph: str, is_same: bool) -> None:
    program = example_program(["x: f64[n]", f"y = aten.mul.Tensor(x, {in_graph})", "return y"])
    matches, _ = find(rule([f"y = aten.mul.Tensor(x, {written})"], ["y = aten.neg.default(x)"]), program)
    assert bool(matches) == is_same


def test_arguments_left_out_are_the_defaults() -> None:
    norm = rule(
        ["y = aten.layer_norm.default(x, [n])"], ["y = fuseconv.layer_norm_act.default(x, None, None, 1e-5, 'none')"]
    )
    lines = ["x: f64[n, 8]", "w: parameter f64[8]"]
    given = "y = aten.layer_norm.default(x, [8], None, None, 1e-05, True)"
    assert find(norm, example_program([*lines, given, "return y"]))[0]
    program = example_program([*lines, "y = aten.layer_norm.default(x, [8], w)", "return y"])
    assert "weight of aten.layer_norm.default to be None, found p_w" in reason(norm, program)
    assert "eps" in reason(norm, example_program([*lines, given.replace("1e-05", "1e-3"), "return y"]))


@pytest.mark.parametrize("axes", ["0, 1", "-2, 1", "0, -1"])
def test_axes_count_from_either_end(axes: str) -> None:
    program = example_program(["x: f64[n, 8]", f"y = aten.transpose.int(x, {axes})", "return y"])
    assert find(rule(["y = aten.transpose.int(x, -2, -1)"], ["y = aten.t.default(x)"]), program)[0]


def test_shapes_are_proved_for_all_sizes_or_refused() -> None:
    same = rule(ADD_RELU.match, ADD_RELU.replace, ["same_shape(a, b)"])
    tail = ["s = aten.add.Tensor(a, b)", "y = aten.relu.default(s)", "return y"]
    assert find(same, example_program(["a: f64[n, 4]", "b: f64[n, 4]", *tail]))[0]
    assert "same_shape(a, b)" in reason(same, example_program(["a: f64[n, 4]", "b: f64[4]", *tail]))
    sizes = rule(ADD_RELU.match, ADD_RELU.replace, ["size(a, 0) == size(b, 1)"])
    assert "size(a, 0) == size(b, 1)" in reason(sizes, example_program(["a: f64[n, 3]", "b: f64[n, 3]", *tail]))
    least = rule(ADD_RELU.match, ADD_RELU.replace, ["size(a, 0) >= 1", "size(a, 0) <= 64"])
    assert find(least, example_program(["a: f64[n, 4]", "b: f64[n, 4]", *tail]))[0]
    beyond = rule(ADD_RELU.match, ADD_RELU.replace, ["size(a, 0) >= 2"])
    assert "size(a, 0) >= 2" in reason(beyond, example_program(["a: f64[n, 4]", "b: f64[n, 4]", *tail]))


SQUEEZED = {
    # name: (what is done to y of n rows, 1 of them at least; whether that is known to keep the shape)
    "a view of what is squeezed": (lambda y: y.squeeze(0).view(-1, 8), False),
    "all that are 1 are squeezed": (lambda y: y.squeeze().reshape(-1, 8), False),
    "several are squeezed": (lambda y: y.squeeze((0, 1)).expand(y.shape[0], 8), False),
    "further down": (lambda y: torch.tanh(torch.exp(y.squeeze(0)) * 2).view(-1, 8), False),
    "added to what is not": (lambda y: (y.squeeze(0) + y).view(-1, 8), False),
    "an axis of another size": (lambda y: y.squeeze(1).view(-1, 8), True),
    "an axis of size 1": (lambda y: y.unsqueeze(1).squeeze(1).view(-1, 8), True),
    "two views": (lambda y: torch.tanh(y.squeeze(0).view(-1, 2, 4)).view(-1, 2, 4), True),
}


@pytest.mark.parametrize("name", SQUEEZED)
def test_shapes_after_a_squeeze_of_what_may_be_one_are_not_known(default_rules: tuple[Rule, ...], name: str) -> None:
    change, known = SQUEEZED[name]
    x = torch.randn(3, 8)
    no_op = next(rule for rule in default_rules if rule.name == "no-op-view")
    matches, misses = find(no_op, capture(Function(lambda _, x: torch.neg(change(torch.relu(x)))), x))
    assert bool(matches) == known
    assert known or "loses an axis if the size that" in misses[0].miss.found
    two = torch.export.Dim("n", min=2, max=64)
    assert find(no_op, capture(Function(lambda _, x: torch.neg(change(torch.relu(x)))), x, dims=({0: two},)))[0]


@pytest.mark.parametrize("condition", ["rank(h) == 2", "size(h, -1) == 8", "size(h, 0) >= 1"])
def test_a_rank_after_a_squeeze_of_what_may_be_one_is_not_known(condition: str) -> None:
    found = rule(["y = aten.relu.default(h)"], ["y = aten.clamp_min.default(h, 0)"], [condition])
    module, x = Function(lambda _, x: torch.relu(torch.exp(x).squeeze(0))), torch.randn(3, 8)
    assert "which loses an axis if the size that" in reason(found, capture(module, x))
    assert find(found, capture(module, x, dims=({0: torch.export.Dim("n", min=2, max=64)},)))[0]


def test_a_new_function_of_rules_is_one_python_function() -> None:
    """Rules and their errors know it. So does the page, whose table is compared in test_writing_rules."""

    @rule_function()
    def is_square(_: Constants, x: Any) -> None:
        """A tensor whose last two sizes are equal."""
        if x.meta["val"].shape[-1] != x.meta["val"].shape[-2]:
            raise Refused("a square matrix", text_of(x))

    try:
        found = rule(["y = aten.relu.default(x)"], ["y = aten.clamp_min.default(x, 0)"], ["is_square(x)"])
        tail = ["y = aten.relu.default(x)", "return y"]
        assert find(found, example_program(["x: f64[8, 8]", *tail]))[0]
        assert "is_square(x): a square matrix" in reason(found, example_program(["x: f64[4, 8]", *tail]))
        assert FUNCTIONS["is_square"].usage == "is_square(x)"
        assert FUNCTIONS["is_square"].kind == "test"
        with pytest.raises(ValueError, match="is_square does not take 2 arguments"):
            rule(["y = aten.relu.default(x)"], ["y = aten.clamp_min.default(x, 0)"], ["is_square(x, x)"])
    finally:
        del FUNCTIONS["is_square"]


def test_matching_adds_no_guard_and_changes_nothing(default_rules: tuple[Rule, ...]) -> None:
    program = example_program(
        [
            "x: f64[n, m, 8]",
            "r: f64[n, m, 4]",
            "w: parameter f64[4, 8]",
            "h = aten.linear.default(x, w)",
            "g = aten.gelu.default(h)",
            "s = aten.add.Tensor(g, r)",
            "y = aten.layer_norm.default(s, [4])",
            "return y",
        ]
    )
    graph = str(program.exported.graph)
    modes = {node.meta["val"].fake_mode for node in program.exported.graph.nodes if node.op == "placeholder"}
    (environment,) = {mode.shape_env for mode in modes}
    before = len(environment.guards), dict(environment.var_to_range), vars(environment).keys()
    plan(program, default_rules, device="cpu", targets=())
    assert (len(environment.guards), dict(environment.var_to_range), vars(environment).keys()) == before
    assert str(program.exported.graph) == graph


def test_results_told_apart_by_position() -> None:
    both = rule(
        ["v, i = aten.max.dim(x, -1)", "y = aten.relu.default(v)"],
        ["m = aten.amax.default(x, [-1])", "y = aten.relu.default(m)", "i = aten.argmax.default(x, -1)"],
    )
    lines = ["x: f64[n, 8]", "v, i = aten.max.dim(x, 1)", "y = aten.relu.default(v)"]
    program = example_program([*lines, "return y, i"])
    fused = rewrite(program, plan(program, [both], device="cpu", targets=()))
    assert "max.dim" not in str(fused.exported.graph)
    torch.testing.assert_close(run(fused), run(program))
    one = rule(["v, _ = aten.max.dim(x, -1)"], ["v = aten.amax.default(x, [-1])"])
    assert find(one, example_program([*lines, "return y"]))[0]
    assert "an output of the program" in reason(one, program)


def test_a_line_that_hangs_on_a_shared_operand_is_found() -> None:
    pair = rule(
        ["a = aten.linear.default(x, v)", "b = aten.linear.default(x, w)"],
        [
            "c = aten.cat.default([v, w], 0)",
            "p = aten.linear.default(x, c)",
            "d, e = aten.chunk.default(p, 2, -1)",
            "a = aten.contiguous.default(d)",
            "b = aten.contiguous.default(e)",
        ],
        ["same_shape(v, w)"],
    )
    lines = ["x: f64[n, 8]", "v: parameter f64[4, 8]", "w: parameter f64[4, 8]"]
    lines += ["a = aten.linear.default(x, v)", "b = aten.linear.default(x, w)", "return a, b"]
    matches, _ = find(pair, example_program(lines))
    assert len(matches) == 2  # anchored at either; planning keeps one
    assert len(plan(example_program(lines), [pair], device="cpu", targets=()).steps) == 1


def test_a_result_read_before_an_operand_is_there() -> None:
    lines = ["x: f64[n, 8]", "r: f64[n, 8]", "s = aten.add.Tensor(x, r)", "z = aten.sum.dim_IntList(s, [0])"]
    lines += ["w = aten.neg.default(z)", "y = aten.layer_norm.default(s, [8], w)", "return y, z"]
    norm = rule(
        ["s = aten.add.Tensor(x, r)", "y = aten.layer_norm.default(s, [8], w, b, eps, _)"],
        ["y, s = fuseconv.add_layer_norm.default(x, r, w, b, eps)"],
    )
    assert "neg, defined after it" in reason(norm, example_program(lines))


def test_a_pattern_that_takes_too_long_is_refused() -> None:
    # Every product reads x twice, so each doubles the ways to match; all of them fail at the last condition.
    names = [f"v{number}" for number in range(20)]
    lines = [f"{above} = aten.mul.Tensor({below}, _)" for below, above in itertools.pairwise(names)]
    slow = rule([*lines, f"y = aten.relu.default({names[-1]})"], ["y = aten.relu.default(v0)"], ["dtype(v0) == f16"])
    text = ["v0: f64[n]", *(line.replace("_)", f"{line.split('(')[1].split(',')[0]})") for line in lines)]
    program = example_program([*text, f"y = aten.relu.default({names[-1]})", "return y"])
    with pytest.raises(RuleError, match=r"more than \d+ comparisons at relu"):
        find(slow, program)


NAMES = {
    "multiply": (lambda x: torch.multiply(x, 2), "aten.mul.Tensor"),
    "subtract": (lambda x: torch.subtract(x, 2), "aten.sub.Tensor"),
    "true_divide": (lambda x: torch.true_divide(x, x), "aten.div.Tensor"),
    "clip": (lambda x: torch.clip(x, 1, 6), "aten.clamp.default"),
    "expit": (torch.special.expit, "aten.sigmoid.default"),
    "max": (lambda x: torch.max(x, -x), "aten.maximum.default"),
    "greater": (lambda x: torch.greater(x, 0.5), "aten.gt.Scalar"),
    "concat": (lambda x: torch.concat([x, x]), "aten.cat.default"),
    "swapaxes": (lambda x: torch.swapaxes(x, 0, 1), "aten.t.default"),
    "multiply in place": (lambda x: x.clone().multiply_(3), "aten.mul.Tensor"),
    "clip in place": (lambda x: x.clone().clip_(1, 6), "aten.clamp.default"),
    "threshold in place": (lambda x: functional.threshold(x.clone(), 1.0, 2.0, True), "aten.threshold.default"),
    "elu in place": (lambda x: functional.elu(x.clone(), inplace=True), "aten.elu.default"),
    "hardswish in place": (lambda x: functional.hardswish(x.clone(), inplace=True), "aten.hardswish.default"),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_op_by_another_name_is_the_op(default_rules: tuple[Rule, ...], name: str) -> None:
    function, op = NAMES[name]
    program = capture(Function(lambda _, x: function(x)), torch.randn(3, 8))
    result = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    assert op in [str(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    torch.testing.assert_close(run(result), run(program), rtol=0, atol=0)


def test_what_draws_or_reshapes_in_place_has_no_functional_twin() -> None:
    ops = [torch.ops.aten.normal_.default, torch.ops.aten.dropout_.default, torch.ops.aten.transpose_.default]
    ops += [torch.ops.aten.copy_.default, torch.ops.aten.relu.default, torch.ops.aten.max.dim]
    assert [functional_of(op) for op in ops] == [None] * len(ops)

"""The shorter forms of a rule: choices, optional operands, fragments, tables, derived examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from fuseconv.errors import RuleError
from fuseconv.rulebook import listed
from fuseconv.rulebook.json_text import read_json
from fuseconv.rulebook.layout import laid_out
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_file import load_rules

OWN = sorted(path for path in (ROOT / "rules").rglob("*.json") if path.name != "schema.json")
RULE: dict[str, Any] = {
    "name": "own",
    "stage": "fuse",
    "doc": "For tests.",
    "match": ["y = aten.relu.default(x)"],
    "replace": ["y = aten.abs.default(x)"],
}


def read(folder: Path, rules: list[dict[str, Any]], **more: Any) -> tuple[Rule, ...]:
    (folder / "own.json").write_text(json.dumps({**more, "rules": [RULE | rule for rule in rules]}))
    return load_rules(folder / "own.json")


def alternatives(rule: Rule) -> list[list[str]]:
    return [list(lines) for lines in rule.texts]


TANH, SILU = ["y = aten.tanh.default(h)", "act = 'tanh'"], ["y = aten.silu.default(h)", "act = 'silu'"]
LET = {
    "y, act = gate(h)": [TANH, SILU],
    "y, act = any_gate(h)": ["y, act = gate(h) | relu(h)"],
    "y, act = relu(h)": ["y = aten.relu.default(h)", "act = 'relu'"],
    "y = halved(x)": ["t = aten.mul.Tensor(x, 0.5)", "y = aten.neg.default(t)"],
    "y = quartered(x)": ["h = halved(x)", "y = halved(h)"],
    "floats(a, b)": ["is_floating(a, b)", "same_kind(a, b)"],
    "rows(a)": ["rank(a) == 2", "floats(a, a)"],
}
MATCHES = {
    # what is written, and the alternatives that it stands for
    "either op": (
        ["y = (aten.view | aten.reshape).default(x, _)"],
        [["y = aten.view.default(x, _)"], ["y = aten.reshape.default(x, _)"]],
    ),
    "either call": (
        ["y = aten.mT.default(x) | aten.permute.default(x, [0, 2, 1])"],
        [["y = aten.mT.default(x)"], ["y = aten.permute.default(x, [0, 2, 1])"]],
    ),
    "either argument": (
        ["y = aten.sum.dim_IntList(x, [1] | [2], True)"],
        [["y = aten.sum.dim_IntList(x, [1], True)"], ["y = aten.sum.dim_IntList(x, [2], True)"]],
    ),
    "the first line varies slowest": (
        ["v = (aten.sin | aten.cos).default(x)", "y = (aten.exp | aten.abs).default(v)"],
        [[f"v = aten.{a}.default(x)", f"y = aten.{b}.default(v)"] for a in ("sin", "cos") for b in ("exp", "abs")],
    ),
    "an optional operand": (
        ["y = aten.linear.default(x, w, b?)"],
        [["y = aten.linear.default(x, w, b)"], ["y = aten.linear.default(x, w, None)", "b = None"]],
    ),
    "a fragment": (
        ["g = aten.neg.default(x)", "y, kind = gate(g)"],
        [
            ["g = aten.neg.default(x)", "y = aten.tanh.default(g)", "kind = 'tanh'"],
            ["g = aten.neg.default(x)", "y = aten.silu.default(g)", "kind = 'silu'"],
        ],
    ),
    "fragments of fragments": (
        ["y, act = any_gate(x)"],
        [[f"y = aten.{name}.default(x)", f"act = '{name}'"] for name in ("tanh", "silu", "relu")],
    ),
    "names of a fragment are its own": (
        ["t = halved(x)", "y = halved(t)"],
        [
            [
                "t_1 = aten.mul.Tensor(x, 0.5)",
                "t = aten.neg.default(t_1)",
                "t_2 = aten.mul.Tensor(t, 0.5)",
                "y = aten.neg.default(t_2)",
            ]
        ],
    ),
    "names of a fragment that another calls twice": (
        ["y = quartered(x)"],
        [
            [
                "t = aten.mul.Tensor(x, 0.5)",
                "h = aten.neg.default(t)",
                "t_1 = aten.mul.Tensor(h, 0.5)",
                "y = aten.neg.default(t_1)",
            ]
        ],
    ),
    "alternatives of a rule": (
        [["y = (aten.sin | aten.cos).default(x)"], ["y = aten.exp.default(x)"]],
        [["y = aten.sin.default(x)"], ["y = aten.cos.default(x)"], ["y = aten.exp.default(x)"]],
    ),
}


@pytest.mark.parametrize("name", MATCHES)
def test_what_a_match_stands_for(name: str, tmp_path: Path) -> None:
    written, meant = MATCHES[name]
    (rule,) = read(tmp_path, [{"match": written}], let=LET)
    assert alternatives(rule) == meant


def test_fragments_of_conditions(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, [{"where": ["rows(x)", "rank(x) <= 3"]}], let=LET)
    assert rule.where == ["rank(x) == 2", "is_floating(x, x)", "same_kind(x, x)", "rank(x) <= 3"]


def test_fragments_are_those_of_the_file_and_of_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "shared.json").write_text(json.dumps({"let": LET}))
    (tmp_path / "between.json").write_text(json.dumps({"include": ["shared.json"]}))
    (rule,) = read(tmp_path, [{"match": ["y, _ = gate(x)"]}], include=["shared.json", "between.json"])
    assert [lines[0] for lines in alternatives(rule)] == ["y = aten.tanh.default(x)", "y = aten.silu.default(x)"]
    (rule,) = read(tmp_path, [{"match": ["y, _ = gate(x)"]}], include=["between.json"])
    assert len(alternatives(rule)) == 2


def test_a_table_is_a_rule_per_row(tmp_path: Path) -> None:
    entry = {
        "name": "own-{op}",
        "for": [{"op": "sin", "check": ""}, {"op": "cos", "check": "rank(x) == 2"}],
        "doc": "The {op}.",
        "match": ["y = aten.{op}.default(x)"],
        "where": ["{check}", "is_floating(x)"],
    }
    rules = read(tmp_path, [entry])
    assert [(rule.name, rule.doc, list(rule.where)) for rule in rules] == [
        ("own-sin", "The sin.", ["is_floating(x)"]),
        ("own-cos", "The cos.", ["rank(x) == 2", "is_floating(x)"]),
    ]


def test_a_file_has_a_stage_for_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    entry = {key: value for key, value in RULE.items() if key != "stage"}
    path.write_text(json.dumps({"stage": "canonical", "rules": [entry, {**RULE, "name": "other"}]}))
    assert [rule.stage for rule in load_rules(path)] == ["canonical", "fuse"]


SCALED = {
    "match": ["h = aten.linear.default(x, w, b)", "g = product(h, times=c)", "y, act = gate(g)"],
    "replace": ["y = aten.tanh.default(x)"],
}
CONTEXT = ["x: f64[n, 8]", "w: parameter f64[4, 8]", "c = 0.5"]
EXAMPLES: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "one per alternative": (
        {"context": CONTEXT},
        [
            [
                "x: f64[n, 8]",
                "w: parameter f64[4, 8]",
                "h = aten.linear.default(x, w)",
                "g = aten.mul.Tensor(h, 0.5)",
                f"y = aten.{name}.default(g)",
                "return y",
            ]
            for name in ("tanh", "silu")
        ],
    ),
    "a product of one thing": (
        {"context": CONTEXT[:2]},
        [
            [*CONTEXT[:2], "h = aten.linear.default(x, w)", f"y = aten.{name}.default(h)", "return y"]
            for name in ("tanh", "silu")
        ],
    ),
    "lines that differ": (
        {
            "hit": [
                ["x: f64[n, 8]", "y = aten.tanh.default(x)", "return y"],
                ["x: f32[3]"],
                ["y = aten.silu.default(x)"],
            ]
        },
        [
            ["x: f64[n, 8]", "y = aten.tanh.default(x)", "return y"],
            ["x: f32[3]", "y = aten.tanh.default(x)", "return y"],
            ["x: f64[n, 8]", "y = aten.silu.default(x)", "return y"],
        ],
    ),
    "a whole program": (
        {
            "hit": [
                ["x: f64[n, 8]", "y = aten.tanh.default(x)", "return y"],
                ["z: f64[3]", "a = aten.sin.default(z)", "return a"],
            ]
        },
        [
            ["x: f64[n, 8]", "y = aten.tanh.default(x)", "return y"],
            ["z: f64[3]", "a = aten.sin.default(z)", "return a"],
        ],
    ),
    "another return": (
        {"context": CONTEXT[:2], "hit": [["z = aten.neg.default(y)", "return z"]]},
        [
            *(
                [*CONTEXT[:2], "h = aten.linear.default(x, w)", f"y = aten.{name}.default(h)", "return y"]
                for name in ("tanh", "silu")
            ),
            [
                *CONTEXT[:2],
                "h = aten.linear.default(x, w)",
                "y = aten.tanh.default(h)",
                "z = aten.neg.default(y)",
                "return z",
            ],
        ],
    ),
    "before and after": (
        {"context": ["t: f64[n, 8]", "x = aten.sin.default(t)", "w: f64[4, 8]", "z = aten.neg.default(y)", "return z"]},
        [
            [
                "t: f64[n, 8]",
                "x = aten.sin.default(t)",
                "w: f64[4, 8]",
                "h = aten.linear.default(x, w)",
                f"y = aten.{name}.default(h)",
                "z = aten.neg.default(y)",
                "return z",
            ]
            for name in ("tanh", "silu")
        ],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_examples_stand_for(name: str, tmp_path: Path) -> None:
    written, meant = EXAMPLES[name]
    (rule,) = read(tmp_path, [{**SCALED, "examples": written}], let=LET)
    assert [list(lines) for lines in rule.examples.hit] == meant


def test_a_capture_may_have_several_values(tmp_path: Path) -> None:
    match = ["y = aten.gelu.default(x, approximate=mode)"]
    context = ["x: f64[n]", "mode = 'none'", "mode = 'tanh'"]
    (rule,) = read(tmp_path, [{"match": match, "examples": {"context": context}}])
    assert [lines[1] for lines in rule.examples.hit] == [
        "y = aten.gelu.default(x, approximate='none')",
        "y = aten.gelu.default(x, approximate='tanh')",
    ]


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # the rule, the rest of the file, what is said and where
    "too many alternatives": (
        {"match": [f"y{at} = (aten.sin | aten.cos).default(y{at + 1})" for at in range(7, 0, -1)]},
        {},
        "more than 64 alternatives",
        "(/rules/0/match/6)",
    ),
    "a fragment that calls itself": (
        {"match": ["y = again(x)"]},
        {"let": {"y = again(x)": ["y = again(x)"]}},
        "calls itself",
        "(/rules/0/match/0)",
    ),
    "conditions that call themselves": (
        {"where": ["again(x)"]},
        {"let": {"again(x)": ["again(x)"]}},
        "calls itself",
        "(/rules/0/where/0)",
    ),
    "arguments of a fragment": (
        {"match": ["y, act = gate(x, x)"]},
        {"let": LET},
        "and exactly 1",
        "(/rules/0/match/0)",
    ),
    "results of a fragment": (
        {"match": ["y = gate(x)"]},
        {"let": LET},
        "returns 2 values, but 1",
        "(/rules/0/match/0)",
    ),
    "a header": ({}, {"let": {"gate": ["y = aten.relu.default(x)"]}}, "is malformed", "(/let/gate)"),
    "alternatives": ({}, {"let": {"a(x)": [["rank(x) == 1"]]}}, "cannot have alternatives", "(/let/a(x))"),
    "two of one name": (
        {},
        {"let": {"a(x)": ["rank(x) == 1"], "y = a(x)": ["y = aten.relu.default(x)"]}},
        "two fragments have the name a",
        "(/let/y = a(x))",
    ),
    "alternatives in a replacement": (
        {"replace": ["y = (aten.abs | aten.neg).default(x)"]},
        {},
        "the replacement cannot have alternatives",
        "(/rules/0/replace)",
    ),
    "a key that the row has not": (
        {"name": "own-{op}", "for": [{"to": "sin"}]},
        {},
        "the row has no op",
        "(/rules/0/for/0)",
    ),
    "an op of an alternative": (
        {"match": ["v = aten.neg.default(x)", "y = (aten.sin | aten.cos).default(v, *z)"]},
        {},
        "cannot be an argument",
        "(/rules/0/match/1)",
    ),
    "no value for an argument": (
        {"match": ["y = aten.add.Tensor(c, x)"], "examples": {"context": ["x: f64[n]"]}},
        {},
        "c in `y = aten.add.Tensor(c, x)` has no value",
        "(/rules/0/examples/context)",
    ),
    "a program that returns nothing": (
        {"examples": {"hit": [["x: f64[n]", "y = aten.relu.default(x)"]]}},
        {},
        "does not end with `return NAMES`",
        "(/rules/0/examples/hit/0)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_place(name: str, tmp_path: Path) -> None:
    rule, more, what, where = WRONG[name]
    with pytest.raises(RuleError) as caught:
        read(tmp_path, [rule], **more)
    assert what in caught.value.what
    assert where in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(ROOT / "rules").as_posix())
def test_our_rules_are_laid_out_as_the_formatter_does(path: Path) -> None:
    assert laid_out(read_json(path, RuleError).value) == path.read_text()


def test_our_rules_are_short_and_say_nothing_twice() -> None:
    lines = {path: path.read_text().count("\n") for path in OWN}
    searched = {path for path in OWN if path.parent.name == "search"}  # equalities, applied only by a search
    assert sum(lines[path] for path in lines.keys() - searched) <= 15 * sum(
        one.stage != "search" for one in listed.own()
    )
    assert sum(lines[path] for path in searched) <= 250
    bodies = [json.dumps(body) for path in OWN for body in json.loads(path.read_text()).get("let", {}).values()]
    assert len(set(bodies)) == len(bodies)

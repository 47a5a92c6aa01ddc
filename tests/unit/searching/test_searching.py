"""The forms that the equalities give: the best one changes with a size, and each computes the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch.fx import Node

from fuseconv.errors import UnsupportedError
from fuseconv.matching.graph import Workspace
from fuseconv.matching.plan import plan
from fuseconv.matching.regions import ops_of, regions
from fuseconv.matching.steps import Form, Plan
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.example import example_program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.searching.cost import Cost, Rates
from fuseconv.searching.kinds import Kind, kinds

RULES = load_rules()

RATES = Rates(flops=1e5, bytes=1e5, call=0.5)
"""A machine on which a product of 64 x 64 matrices takes 5 us, and each op half a microsecond."""

RUNGS = ({"n": 2}, {"n": 64})

GRAPHS = {
    # what: (the program, the best form for a small n, and for a large one)
    "a chain": (
        [
            "q: f64[n, 32]",
            "k: f64[32, n]",
            "v: f64[n, 32]",
            "h = aten.matmul.default(q, k)",
            "y = aten.matmul.default(h, v)",
            "return y",
        ],
        "as it is",
        "e0 = aten.matmul.default(v1, v2); v4 = aten.matmul.default(v0, e0)",
    ),
    "an adapter that is not constant": (
        [
            "x: f64[n, 64]",
            "w: f64[64, 64]",
            "a: f64[64, 32]",
            "b: f64[32, 64]",
            "g = aten.matmul.default(x, w)",
            "h = aten.matmul.default(x, a)",
            "i = aten.matmul.default(h, b)",
            "y = aten.add.Tensor(g, i)",
            "return y",
        ],
        "as it is",
        "e0 = aten.matmul.default(v2, v3); e1 = aten.add.Tensor(e0, v1); v7 = aten.matmul.default(v0, e1)",
    ),
    "an adapter of weights": (
        [
            "x: f64[n, 64]",
            "w: parameter f64[64, 64]",
            "a: parameter f64[8, 64]",
            "b: parameter f64[64, 8]",
            "c: parameter f64[64]",
            "g = aten.linear.default(x, w, c)",
            "h = aten.linear.default(x, a)",
            "i = aten.linear.default(h, b)",
            "j = aten.mul.Tensor(i, 2.0)",
            "y = aten.add.Tensor(g, j)",
            "return y",
        ],
        "aten.linear.default(v0, e5, v2)",
        "aten.linear.default(v0, e5, v2)",
    ),
    "a linear after a linear that is narrow": (
        [
            "x: f64[n, 64]",
            "a: parameter f64[8, 64]",
            "d: parameter f64[8]",
            "b: parameter f64[64, 8]",
            "h = aten.linear.default(x, a, d)",
            "y = aten.linear.default(h, b)",
            "return y",
        ],
        "aten.linear.default(v0, e",
        "as it is",
    ),
    "a projection behind attention": (
        [
            "q: f64[1, n, 64]",
            "k: f64[1, 32, 64]",
            "v: f64[1, 32, 64]",
            "w: parameter f64[8, 64]",
            "h = aten.scaled_dot_product_attention.default(q, k, v)",
            "y = aten.linear.default(h, w)",
            "return y",
        ],
        "as it is",
        "e0 = aten.linear.default(v2, v3); v5 = aten.scaled_dot_product_attention.default(v0, v1, e0)",
    ),
    "a number on the larger side": (
        [
            "x: f64[n, 64]",
            "w: parameter f64[64, 64]",
            "s = aten.mul.Tensor(x, 0.5)",
            "y = aten.linear.default(s, w)",
            "return y",
        ],
        "v3 = aten.linear.default(v0, e",
        "v3 = aten.linear.default(v0, e",
    ),
}


@cache
def program_of(what: str) -> Program:
    return example_program(GRAPHS[what][0])


def rates_of(_device: str, _dtype: torch.dtype) -> Rates:
    return RATES


def greedy(program: Program) -> Plan:
    return plan(program, RULES, device="cpu", targets=["export"])


@cache
def kind_of(what: str) -> Kind:
    (kind,) = kinds(program_of(what), greedy(program_of(what)), RULES, RUNGS, {}, rates=rates_of)
    return kind


@pytest.mark.parametrize("what", GRAPHS)
def test_the_best_form_is_found_at_each_size(what: str) -> None:
    kind = kind_of(what)
    assert kind.limit == ""
    for at, expected in enumerate(GRAPHS[what][1:]):
        best = min((kind.given, *kind.candidates), key=lambda form: form.times[at])
        assert str(expected) in ("as it is" if best is kind.given else "; ".join(best.lines))


@pytest.mark.parametrize("what", GRAPHS)
def test_every_form_is_proved_and_replaces_the_region(what: str) -> None:
    kind = kind_of(what)
    assert kind.candidates
    for candidate in kind.candidates:
        forms = {kind.text: Form(candidate.lines)}
        found = checked_plan(program_of(what), RULES, device="cpu", targets=["export"], forms=forms)
        assert [step.replace for step in found.applied if step.rule == "search"] == [candidate.lines]
        assert Plan.from_json(found.to_json()) == found


def test_a_form_that_computes_something_else_is_rejected() -> None:
    kind = kind_of("a chain")
    forms = {
        kind.text: Form(
            ("e0 = aten.matmul.default(v1, v2)", "e1 = aten.matmul.default(v0, e0)", "v4 = aten.mul.Tensor(e1, 1.01)"),
            notes=("a note",),
        )
    }
    found = checked_plan(program_of("a chain"), RULES, device="cpu", targets=["export"], forms=forms)
    assert not [step for step in found.steps if step.rule == "search"]
    reasons = [miss.reason for miss in found.misses if miss.rule == "search"]
    assert reasons[0] == "a note"
    assert "gives a different result" in reasons[1]


@pytest.mark.parametrize(("limits", "words"), [({"nodes": 2}, "2 ops"), ({"seconds": 0.0}, "0 seconds")])
def test_a_limit_is_told(limits: dict[str, float], words: str) -> None:
    program = program_of("a chain")
    (kind,) = kinds(program, greedy(program), RULES, RUNGS, {}, rates=rates_of, **limits)  # type: ignore[arg-type]
    assert kind.limit == words


def test_without_egglog_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "egglog.bindings", None)
    with pytest.raises(UnsupportedError) as caught:
        kinds(program_of("a chain"), greedy(program_of("a chain")), RULES, RUNGS, {}, rates=rates_of)
    assert "pip install 'fuseconv[search]'" in caught.value.fix


def test_a_measured_tactic_comes_before_the_roofline() -> None:
    program = program_of("an adapter of weights")
    (linear, *_) = [node for node in program.exported.graph.nodes if str(node.target) == "aten.linear.default"]
    sizes = {"8": {"slow": {"us": 9.0}, "fast": {"us": 2.0}}, "32": {"only": {"us": 4.0}}}
    problems = {"NVIDIA H200; cublas 130100; linear f64 none n 64 k 64 bias": sizes}
    rungs = [{"n": rows} for rows in (4, 8, 20, 32)]
    cost = Cost(program, rungs, RATES, problems)
    assert cost.times(linear)[1:] == (2.0, 3.0, 4.0)
    assert cost.times(linear)[0] == Cost(program, rungs, RATES).times(linear)[0]


CONVEX = ["x: f64[n, 8]", "w: parameter f64[8, 8]", "h = aten.linear.default(x, w)", "g = aten.relu.default(h)"]
REGIONS = {
    "a path that leaves and returns": ([*CONVEX, "y = aten.add.Tensor(h, g)", "return y"], [1, 1]),
    "a value that is used outside": ([*CONVEX, "y = aten.linear.default(h, w)", "return y, g"], [2]),
    "two dtypes": ([*CONVEX[:3], "y = aten.linear.default(h, w)", "z = aten.to.dtype(y, f32)", "return z"], [2]),
    "nothing but views": (["x: f64[n, 8]", "y = aten.t.default(x)", "return y"], [1]),
    "equal layers": ([*CONVEX, "i = aten.linear.default(g, w)", "y = aten.neg.default(i)", "return y"], [1, 1]),
}


def lengths(program: Program) -> Sequence[tuple[tuple[Node, ...], str]]:
    found = regions(Workspace(program.exported), ops_of(RULES), {})
    return [(region.nodes, region.text) for region in found]


@pytest.mark.parametrize("what", REGIONS)
def test_regions_are_convex(what: str) -> None:
    lines, expected = REGIONS[what]
    found = lengths(example_program(lines))
    assert [len(nodes) for nodes, _ in found] == expected
    assert what != "equal layers" or len({text for _, text in found}) == 1

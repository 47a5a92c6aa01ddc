"""`fuseconv explain`: its report on models that almost match; its JSON; the time of matching."""

import cProfile
import importlib
import io
import json
import math
import pstats
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import ROOT, programs, warm_python
from torch import Tensor
from torch.nn import functional as F

from fuseconv.commands.results import print_explanation
from fuseconv.contract.spec import Contract
from fuseconv.errors import RuleError
from fuseconv.matching.explanation import Explanation, explain, schema
from fuseconv.matching.plan import plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

sys.path.insert(0, str(ROOT / "bench"))
matching = importlib.import_module("matching")


def vectors() -> tuple[Tensor, ...]:
    return (torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),)


def heads() -> tuple[Tensor, ...]:
    return tuple(torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 3))


def gelu_of_another_number(m: Any, x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 1.5))


def gelu_of_tanh(m: Any, x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(x / math.sqrt(2)))


def gelu_of_another_value(m: Any, x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x.abs() / math.sqrt(2)))


def layer_norm_over_rows(m: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(0, keepdim=True) + 1e-5)


def rms_norm_of_cubes(m: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6) * m.g


def attention_along_queries(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), 1) @ v


def linear_seen_twice(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = F.linear(x, m.w)
    return F.relu(h), h


def gated_by_another_input(m: Any, x: Tensor) -> Tensor:
    return F.silu(F.linear(x, m.w)) * F.linear(x + 1, m.v)


def residual_of_other_shape(m: Any, x: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, m.w)[:, None] + x[None], (8,))


Row = tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]], str, bool, str, str, str]

ALMOST: list[Row] = [
    # model, inputs, rule, whether all of it is there, the first node that differs, expected, found
    (gelu_of_another_number, vectors, "gelu-erf", False, "div", "0.70710678", "0.6666666666666666"),
    (gelu_of_tanh, vectors, "gelu-erf", False, "tanh", "aten.erf.default", "aten.tanh.default"),
    (gelu_of_another_value, vectors, "gelu-erf", False, "inputs_0", "to be x, abs_1: f32[3, 8]", "inputs_0: f32[3, 8]"),
    (layer_norm_over_rows, vectors, "layer-norm", False, "mean_1", "aten.var.correction", "aten.mean.dim"),
    (layer_norm_over_rows, vectors, "rms-norm", False, "mean_1", "dim of aten.mean.dim to be -1", "0"),
    (rms_norm_of_cubes, vectors, "rms-norm", False, "inputs_0", "other of aten.mul.Tensor", "inputs_0: f32[3, 8]"),
    (attention_along_queries, heads, "attention", False, "softmax", "dim of aten.softmax.int to be -1", "1"),
    (linear_seen_twice, vectors, "linear-act", True, "linear", "no user outside the match", "an output of the program"),
    (gated_by_another_input, vectors, "gated", False, "add", "input of aten.linear.default to be x", "add"),
    (residual_of_other_shape, vectors, "add-layer-norm", True, "layer_norm", "same_shape", "unsqueeze_1: f32[1, "),
]


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for name, shape in (("w", (8, 8)), ("v", (8, 8)), ("g", (8,))):
            values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def told(function: Callable[..., Any], inputs: tuple[Tensor, ...], rules: Sequence[Rule]) -> Explanation:
    exported = torch.export.export(Model(function).eval(), inputs)
    program = Program(exported, Contract((), ()), inputs)
    return explain(plan(program, rules, device="cpu", targets=()), rules)


@pytest.mark.parametrize("row", ALMOST, ids=lambda row: f"{row[0].__name__}-{row[2]}")
def test_a_model_spelled_almost_right(row: Row, default_rules: tuple[Rule, ...]) -> None:
    function, inputs, rule, fits, differs, expected, found = row
    (one,) = (one for one in told(function, inputs(), default_rules).rules if one.rule == rule)
    assert not one.applied
    miss = one.near_miss
    assert miss is not None
    assert bool(one.rejected) == miss.refused == fits
    assert (miss.differs, miss.matched <= miss.ops) == (differs, True)
    assert expected in miss.expected
    assert found in miss.found
    assert "test_explain.py:" in miss.where
    assert "in forward" in miss.where


def text(explanation: Explanation, *, everything: bool = False) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    print_explanation(console, explanation, everything=everything)
    return console.export_text()


def test_sites_that_differ_in_their_layer_are_one_line(default_rules: tuple[Rule, ...]) -> None:
    program = programs.bert(layers=12)
    explanation = explain(plan(program, default_rules, device="cpu", targets=()), default_rules)
    (residual,) = (rule for rule in explanation.rules if rule.rule == "linear-residual")
    assert len(residual.rejected) == 24
    short = text(explanation)
    assert "rejected 12 times, first at add_6" in short
    assert all(len(family.splitlines()) < 40 for family in short.split("\n\n"))
    assert text(explanation, everything=True).count("rejected at") > 24


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "explain.md").read_text()
    model, expected = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0] for language in ("python", "text"))
    (tmp_path / "model.py").write_text(model)
    save = f"import runpy; runpy.run_path({str(tmp_path / 'model.py')!r}, run_name='__main__')"
    explain = "import sys; from fuseconv.cli import main; sys.exit(main(['explain', 'model.pt2']))"
    for code in (save, explain):
        done = warm_python.run(code, tmp_path, {"COLUMNS": "120", "NO_COLOR": "1"})
        assert done.returncode == 0, done.stderr
    assert done.stdout.replace(f"{tmp_path}/", "") == expected


def test_the_schema_is_the_one_that_is_documented(default_rules: tuple[Rule, ...]) -> None:
    assert (ROOT / "docs" / "explain.schema.json").read_text() == schema()
    value = told(linear_seen_twice, vectors(), default_rules).to_json()
    documented = json.loads(schema())
    assert set(value) == set(documented["properties"])
    assert {key for rule in value["rules"] for key in rule} == set(documented["$defs"]["Explained"]["properties"])
    assert set(value["near_misses"][0]) == set(documented["$defs"]["Miss"]["properties"])


def calls_per_node(one: torch.export.ExportedProgram, nodes: int, rules: tuple[Rule, ...]) -> float:
    """Returns how many Python functions planning calls per node. Unlike seconds, it is the same in every run."""
    program = matching.repeated(one, nodes)
    profile = cProfile.Profile()
    profile.runcall(plan, program, rules, device="cpu", targets=())
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls / len(program.exported.graph.nodes)


def test_a_graph_five_times_as_large_takes_five_times_as_much_work(default_rules: tuple[Rule, ...]) -> None:
    """What grows with the square of the graph would take five times as many calls per node."""
    one = matching.block()
    matching.measure(one, 0)
    assert calls_per_node(one, 500, default_rules) < 1.5 * calls_per_node(one, 100, default_rules)


CHAIN = 200


def chain(function: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(CHAIN):
            x = function(x)
        return x

    return forward


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 0.999, lambda x: x + 0, lambda x: x.to(torch.float64).to(torch.float32), lambda x: (x * 2).relu_()],
    ids=["products", "nothing", "casts", "in place"],
)
def test_a_long_chain_is_planned(function: Callable[[Tensor], Tensor], default_rules: tuple[Rule, ...]) -> None:
    told(chain(function), vectors(), default_rules)


def hostile(factors: int) -> Rule:
    names = [f"v{number}" for number in range(factors)]
    return Rule.model_validate(
        {
            "name": "hostile",
            "stage": "fuse",
            "doc": "d",
            "match": [f"y = product({', '.join(names)}, times=c)"],
            "replace": ["y = aten.relu.default(v0)"],
            "where": ["dtype(v0) == f16"],
        }
    )


def product(m: Any, x: Tensor) -> Tensor:
    values = [x + number for number in range(16)]
    while len(values) > 1:
        values = [a * b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def test_a_hostile_pattern_hits_the_budget() -> None:
    """Twelve factors may come in 479,001,600 orders, and a tree of sixteen may be cut in as many ways."""
    with pytest.raises(RuleError, match=r"rule hostile: .* more than \d+ comparisons at mul_\d+"):
        told(product, vectors(), [hostile(12)])

"""The fuzzers run, find planted errors, and find nothing else in a short time."""

import json
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

from fuseconv.contract.input_text import parse_inputs
from fuseconv.matching.steps import Plan
from fuseconv.program.captured import Program
from fuzz import oracle
from fuzz.mutate import CHANGES, mutated
from fuzz.program import Model, make
from fuzz.shrink import minimised, minimised_model

INPUTS = {spec.name: spec for spec in parse_inputs(["x0=f32[n:1..6,4]"])}
BUDGETS = {
    "models": ["--counts", "4", "--options", '{"targets": ["export", "torchscript"], "shrink": 5}'],
    "rules": ["--counts", "5"],
    "files": ["--counts", "50"],
}


@pytest.mark.fuzz
@pytest.mark.long
@pytest.mark.parametrize("part", BUDGETS)
def test_a_short_run_finds_nothing(part: str, tmp_path: Path) -> None:
    """With a seed that no run before had: a failure says which, so that it can be seen again."""
    seed = secrets.token_hex(4)
    command = [sys.executable, "-m", "fuzz", "--only", part, "--seed", seed, "--seconds", "40", "--out", str(tmp_path)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, *BUDGETS[part]], cwd=ROOT, env=environment, capture_output=True, text=True)
    said = "\n".join(path.read_text() for path in tmp_path.glob("*/README"))
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}{said}"
    found = json.loads(done.stdout)
    assert 0 < found["parts"][part]["cases"] <= int(BUDGETS[part][1])


def model(*lines: str, returned: tuple[str, ...] = ("v1",), targets: tuple[str, ...] = ("export",)) -> Model:
    return Model(INPUTS, {}, lines, returned, targets)


def test_the_oracle_sees_a_wrong_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite that takes another op, planted: it is found, and minimised to the one line that matters."""
    import torch

    def wrong(program: Program, plan: Plan) -> Program:
        for node in program.exported.graph.nodes:
            if node.target is torch.ops.aten.tanh.default:
                node.target = torch.ops.aten.sigmoid.default
        program.exported.graph_module.recompile()
        return program

    monkeypatch.setattr(oracle, "rewrite", wrong)
    large = model(
        "v1 = torch.tanh(x0)",
        "v2 = v1 * 2",
        "v3 = x0 + 1",
        "v4 = v2 + v3",
        "v5 = F.relu(v4)",
        returned=("v5", "v3"),
    )
    found = oracle.convert(large.text(), ())
    assert found.kind == "wrong"
    small = minimised_model(large, lambda other: oracle.convert(other.text(), ()).kind == "wrong", 20)
    assert small.lines == ("v1 = torch.tanh(x0)",)


def test_a_sound_model_is_sound() -> None:
    outcome = oracle.convert(model("v1 = F.gelu(x0) * x0.shape[0]", targets=("export", "torchscript")).text(), ())
    assert (outcome.kind, outcome.counts["converted export"], outcome.counts["converted torchscript"]) == ("", 1, 1)


def test_a_file_builds_the_same_model_each_time() -> None:
    import torch

    text = Model(INPUTS, {"p0": parse_inputs(["p0=f32[4]"])[0]}, ("v1 = x0 * self.p0",), ("v1",)).text()
    one, other = make(text), make(text)
    assert torch.equal(one.module.get_parameter("p0"), other.module.get_parameter("p0"))
    assert one.inputs == tuple(INPUTS.values())


def test_minimised_keeps_what_fails_alone() -> None:
    fails = {3, 17}
    kept = minimised(list(range(40)), lambda some: fails <= set(some), time.process_time() + 10)
    assert set(kept) == fails


RULE = {
    "name": "some-rule",
    "match": ["a = aten.mul.Tensor(x, 0.5)", "y = aten.relu.default(a)"],
    "where": ["dtype(x) in f64 f32", "rank(x) == 2"],
    "replace": ["b = aten.relu.default(x)", "y = aten.mul.Tensor(b, 0.5)"],
    "examples": {"hit": [["x: f64[n, 4]", "a = aten.mul.Tensor(x, 0.5)", "y = aten.relu.default(a)", "return y"]]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_changes_a_rule_or_nothing(name: str) -> None:
    changed = 0
    for seed in range(20):
        rule = json.loads(json.dumps(RULE))
        said = CHANGES[name](rule, random.Random(seed))
        assert said or rule == RULE
        changed += rule != RULE
    assert changed or name in ("word of the replacement", "comparison of a condition", "operands matched swapped")


def test_mutations_are_those_of_their_seed() -> None:
    assert mutated(RULE, random.Random(5)) == mutated(RULE, random.Random(5))

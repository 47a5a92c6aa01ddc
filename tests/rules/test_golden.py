"""Whole models: the fused graph as text, stored in tests/golden; `--update-goldens` rewrites it."""

from pathlib import Path

import pytest
import torch
from support import ROOT, hub_models, programs
from torch.fx import Node

from fuseconv.matching.graph import Workspace, op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.captured import Program
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule

GOLDEN = ROOT / "tests" / "golden"

Fused = tuple[str, Program, Plan, Program]
"""A model's name, its program, the plan, and the program that the plan makes of it."""


@pytest.fixture(scope="module", params=["bert", "vit", "resnet"])
def fused(request: pytest.FixtureRequest, default_rules: tuple[Rule, ...]) -> Fused:
    program = getattr(programs, request.param)()
    found = plan(program, default_rules, device="cpu", targets=())
    return request.param, program, found, rewrite(program, found)


def printed(found: Plan, program: Program) -> str:
    """Returns the counts by rule, then every op as an SSA line; sizes of no importance are left out."""
    lines = [f"# {rule}: {count}" for rule, count in found.counts().items()]
    for node in program.exported.graph.nodes:
        if node.op == "call_function":
            args = [*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]
            lines.append(f"{node.name} = {op_name(node.target)}({', '.join(args)})")
        elif node.op == "output":
            lines.append(f"return {', '.join(map(str, node.args[0]))}")
    return "\n".join(lines) + "\n"


def test_the_fused_graph_is_the_golden_one(fused: Fused, request: pytest.FixtureRequest) -> None:
    name, _, found, program = fused
    path = GOLDEN / f"{name}.txt"
    text = printed(found, program)
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_fused_model_computes_the_same(fused: Fused) -> None:
    _, program, _, fused_program = fused
    torch.testing.assert_close(programs.run(fused_program), programs.run(program))


def test_other_sizes_compute_the_same(fused: Fused) -> None:
    _, program, _, fused_program = fused
    inputs = tuple(torch.cat([tensor, tensor])[:1] for tensor in program.examples)
    torch.testing.assert_close(programs.run(fused_program, inputs), programs.run(program, inputs))


def test_the_fused_program_is_saved_and_loaded(fused: Fused, tmp_path: Path) -> None:
    _, _, _, program = fused
    program.exported.validate()
    torch.export.save(program.exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    torch.testing.assert_close(loaded.module()(*program.examples), programs.run(program), rtol=0, atol=0)
    ranges = {str(symbol): str(bounds) for symbol, bounds in program.exported.range_constraints.items()}
    assert {str(symbol): str(bounds) for symbol, bounds in loaded.range_constraints.items()} == ranges
    rules = [
        step["rule"]
        for node in loaded.graph.nodes
        for step in (node.meta.get("custom") or {}).get("fuseconv", ())
        if str(node.target).startswith("fuseconv.")
    ]
    assert rules


@pytest.fixture(scope="module", params=hub_models.MODELS)
def hub(request: pytest.FixtureRequest, default_rules: tuple[Rule, ...]) -> Fused:
    program = hub_models.MODELS[request.param](torch.float32)
    found = plan(program, default_rules, device="cpu", targets=())
    return request.param, program, found, rewrite(program, found)


def test_a_hub_model_is_fused_as_its_golden_graph(hub: Fused, request: pytest.FixtureRequest) -> None:
    name, _, found, program = hub
    path = GOLDEN / f"{name}.txt"
    text = printed(found, program)
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text()


def calls(program: Program, *names: str) -> list[Node]:
    nodes = (node for node in program.exported.graph.nodes if node.op == "call_function")
    return [node for node in nodes if any(word in op_name(node.target) for word in names)]


def test_nothing_is_left_that_need_not_be(hub: Fused) -> None:
    """No dropout, no batch norm, one product for one input, no mask that could be proved constant."""
    _, _, _, program = hub
    assert calls(program, "dropout", "batch_norm") == []
    inputs = [node.args[0] for node in calls(program, "aten.linear.", "linear_act", "linear_gated")]
    assert len(inputs) == len(set(inputs))
    workspace = Workspace(program.exported)
    for node in calls(program, "scaled_dot_product_attention"):
        if len(node.args) > 3 and node.args[3] is not None:
            with pytest.raises(Refused):
                workspace.formula(node.args[3])


def check_parity(program: Program, fused_program: Program) -> None:
    fp64 = run_in_float64(program, program.examples)
    for row in map(compare, programs.run(fused_program), programs.run(program), fp64):
        assert row.ok, row.reason


def test_a_fused_hub_model_computes_the_same(hub: Fused) -> None:
    _, program, _, fused_program = hub
    check_parity(program, fused_program)


@pytest.mark.diagonal(4)
@pytest.mark.parametrize("name", hub_models.MODELS)
def test_a_fused_hub_model_computes_the_same_in_bfloat16(name: str, default_rules: tuple[Rule, ...]) -> None:
    program = hub_models.MODELS[name](torch.bfloat16)
    check_parity(program, rewrite(program, plan(program, default_rules, device="cpu", targets=())))

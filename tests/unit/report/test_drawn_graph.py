"""The fused graph that is drawn from the plan: it is the graph that the plan makes, and a plan that does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs

from fuseconv.bundle.manifest import read_manifest, seal
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import RefusedError
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.pipeline.convert import convert
from fuseconv.report.archive import read_graph, read_named
from fuseconv.report.described import describe
from fuseconv.report.drawn import UNKNOWN, draw
from fuseconv.report.graph import Graph
from fuseconv.rulebook.rule import Rule


def told(graph: Graph) -> list[tuple[Any, ...]]:
    """Returns what a reader sees of each node, except arguments and types that only torch can tell."""
    return [
        (
            node.name if node.kind == "op" else "",
            node.kind,
            node.op,
            node.inputs,
            graph.modules[node.module].path,
            node.line,
            node.made,
        )
        for node in graph.nodes
    ]


@pytest.mark.parametrize("name", ["bert", "vit", "resnet"])
def test_the_drawn_graph_is_the_one_that_the_plan_makes(
    name: str, default_rules: tuple[Rule, ...], tmp_path: Path
) -> None:
    program = getattr(programs, name)()
    signature = program.exported.graph_signature
    inputs = [
        TensorSpec(one, "f32", tuple(x.shape)) for one, x in zip(signature.user_inputs, program.examples, strict=True)
    ]
    contract = Contract(tuple(inputs), tuple(map(str, signature.user_outputs)))
    found = plan(program, default_rules, device="cpu", targets=())
    torch.export.save(program.exported, tmp_path / "captured.pt2")
    torch.export.save(rewrite(program, found).exported, tmp_path / "fused.pt2")
    drawn = draw(read_named(tmp_path / "captured.pt2", contract), found.applied)
    fused = read_graph(tmp_path / "fused.pt2", contract)
    assert any(node.made for node in drawn.nodes)
    assert told(drawn) == told(fused)
    for ours, theirs in zip(drawn.nodes, fused.nodes, strict=True):
        known = [(one, other) for one, other in zip(ours.types, theirs.types, strict=False) if one != UNKNOWN]
        assert all(one == other for one, other in known)
        assert known or not theirs.types or ours.made


def test_a_bundle_without_the_target_export_has_a_drawn_graph(converted: Path, tmp_path: Path) -> None:
    output = tmp_path / "scripted.fuseconv"
    convert(converted / "model.pt2", target=["torchscript"], output=output)
    found, whole = describe(output), describe(converted / "model.fuseconv")
    assert (found.drawn_of, whole.drawn_of) == ("torchscript", None)
    assert found.fused is not None
    assert whole.fused is not None
    assert told(found.fused) == told(whole.fused)
    assert [match.after for match in found.matches] == [match.after for match in whole.matches]
    mlp = next(node for node in found.fused.nodes if node.op == "fuseconv.mlp.default")
    assert "w1 = layers.0.up.weight: f32[64, 16]" in mlp.arguments


def _gone(step: dict[str, Any]) -> None:
    step["nodes"], step["results"] = ["gone"], dict.fromkeys(step["results"], "gone")


def _own_result(step: dict[str, Any]) -> None:
    """Makes a step whose op uses the values that the op replaces."""
    (result,) = step["results"].values()
    step["bindings"] = {name: {"node": result} for name in step["bindings"]}


def _unbound(step: dict[str, Any]) -> None:
    step["bindings"] = {}


@pytest.mark.parametrize("edit", [_gone, _own_result, _unbound])
def test_a_plan_that_does_not_fit_is_refused(
    edit: Callable[[dict[str, Any]], None], converted: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(converted / "model.fuseconv", tmp_path / "model.fuseconv"))
    value = json.loads((bundle / "plan.json").read_text())
    edit(value["steps"][0])
    (bundle / "plan.json").write_text(json.dumps(value))
    manifest = read_manifest(bundle)
    targets = {name: file for name, file in manifest.targets.items() if name != "export"}
    shutil.rmtree(bundle / "export")
    seal(bundle, manifest.model_copy(update={"targets": targets}))
    with pytest.raises(RefusedError, match="the plan does not fit the captured graph"):
        describe(bundle)

"""What a report reads from a bundle: graphs with source lines, matches with what replaced them, misses; and damage."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuseconv.bundle.manifest import read_manifest, seal
from fuseconv.bundle.packages import Package
from fuseconv.errors import RefusedError
from fuseconv.matching.steps import read_plan
from fuseconv.report.described import Described, describe
from fuseconv.report.graph import Graph


@pytest.fixture(scope="module")
def described(converted: Path) -> Described:
    return describe(converted / "model.fuseconv")


@pytest.fixture
def captured(described: Described) -> Graph:
    assert described.captured is not None
    return described.captured


def test_the_captured_graph_has_modules_types_and_lines(captured: Graph) -> None:
    gelu = next(node for node in captured.nodes if node.op == "aten.gelu.default")
    assert captured.modules[gelu.module].path == "layers.0"
    assert captured.modules[gelu.module].kind == "Block"
    assert gelu.types == ("f32[3, 64]",)
    assert [captured.nodes[one].op for one in gelu.inputs] == ["aten.linear.default"]
    assert gelu.line is not None
    assert captured.files[gelu.line.file].endswith("planted.py")
    assert gelu.line.code == "return x + self.down(nn.functional.gelu(self.up(self.norm(x))))"
    linear = captured.nodes[gelu.inputs[0]]
    assert "weight = layers.0.up.weight: f32[64, 16]" in linear.arguments
    assert captured.modules[linear.module].path == "layers.0.up"
    kinds = [node.kind for node in captured.nodes]
    assert (kinds[0], kinds[-1]) == ("input", "output")
    assert all(place < at for at, node in enumerate(captured.nodes) for place in node.inputs)


def test_packages_of_other_machines_have_rows_of_their_own(converted: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(converted / "model.fuseconv", tmp_path / "two.fuseconv"))
    manifest = read_manifest(folder)
    older = manifest.environment.model_copy(update={"machine": "x86_64", "cpu": "AVX2"})
    rows = [row for row in manifest.parity if row["target"] == "export"]
    package = Package(target="export", path=manifest.targets["export"], environment=older, parity=rows)
    seal(folder, manifest.updating_packages([package]))
    found = describe(folder)
    assert found.packages == {"export": (manifest.environment.architecture, older.architecture)}
    assert [row["target"] for row in found.parity[len(manifest.parity) :]] == ["export for x86_64-avx2"] * len(rows)


def test_the_command_of_the_conversion_is_shown(described: Described, converted: Path) -> None:
    invocation = read_manifest(converted / "model.fuseconv").invocation
    assert (described.command, described.revision) == (None, None)
    assert invocation is None


def test_modules_come_after_those_that_call_them(captured: Graph) -> None:
    assert captured.modules[0].parent == -1
    assert all(module.parent < at for at, module in enumerate(captured.modules))
    parents = {module.path: captured.modules[module.parent].path for module in captured.modules[1:]}
    assert parents["layers.1.norm"] == "layers.1"
    assert parents["layers.1"] == ""


def test_matches_are_those_of_the_plan_with_what_replaced_them(described: Described, converted: Path) -> None:
    plan = read_plan(converted / "model.fuseconv" / "plan.json")
    assert [(one.rule, one.nodes) for one in described.matches] == [(one.rule, one.nodes) for one in plan.steps]
    assert described.misses == plan.misses
    assert described.fused is not None
    made = {at for at, node in enumerate(described.fused.nodes) if node.made}
    assert made
    assert made == {at for match in described.matches for at in match.after}
    assert set(described.docs) == {match.rule for match in described.matches}
    assert [one.trial for one in described.matches] == [one.trial for one in plan.steps]
    for match in described.matches:
        assert match.applied
        assert match.trial is not None
        assert match.trial.draws > 0
        for at in match.after:
            assert described.fused.nodes[at].op in "\n".join(match.replace)


def test_the_rest_is_that_of_the_manifest(described: Described, converted: Path) -> None:
    manifest = read_manifest(converted / "model.fuseconv")
    assert described.parity == manifest.parity
    assert described.files == manifest.files
    assert described.inputs == tuple(map(str, manifest.contract.inputs))
    assert described.tolerance == manifest.tolerances["f32"]
    assert (described.name, described.tuned, described.gains) == ("model.fuseconv", None, ())


def test_a_match_that_every_target_leaves_alone_is_not_applied(converted: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(converted / "model.fuseconv", tmp_path / "model.fuseconv"))
    manifest = read_manifest(bundle)
    plan = json.loads((bundle / "plan.json").read_text())
    times = {"fused_us": 3.0, "unfused_us": 2.0, "noise_us": 0.5}
    plan["steps"][0]["choices"] = {target: {"applied": False, **times} for target in manifest.targets}
    plan["steps"][1]["choices"] = {target: {"applied": target == "onnx", **times} for target in manifest.targets}
    (bundle / "plan.json").write_text(json.dumps(plan))
    seal(bundle, manifest)
    found = describe(bundle)
    assert [one.applied for one in found.matches[:3]] == [False, True, True]
    assert {gain["speedup"] for gain in found.gains} == {round(2 / 3, 4)}


def test_a_bundle_without_its_original_has_no_captured_graph(bundle: Path) -> None:
    found = describe(bundle)
    assert found.captured is None
    assert found.fused is not None
    assert "f32[batch, seq, 8]" in {text for node in found.fused.nodes for text in node.types}
    assert (found.matches, found.misses) == ((), ())


def _deep(program: dict[str, Any]) -> bytes:
    del program
    return b"[" * 100_000


DAMAGE: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "not JSON": lambda program: b"{",
    "a list": lambda program: b"[]",
    "no graph": lambda program: b"{}",
    "too deep": _deep,
    "a node without a target": lambda program: json.dumps(_without_target(program)).encode(),
    "a lone surrogate": lambda program: json.dumps(program).replace("gelu", "\\ud800").encode(),
    "no inputs": lambda program: json.dumps(_without_inputs(program)).encode(),
    "a size that is code": lambda program: json.dumps(_with_size(program, "import os")).encode(),
}


def _without_target(program: dict[str, Any]) -> dict[str, Any]:
    del program["graph_module"]["graph"]["nodes"][0]["target"]
    return program


def _with_size(program: dict[str, Any], text: str) -> dict[str, Any]:
    program["graph_module"]["graph"]["tensor_values"]["gelu"]["sizes"] = [{"as_expr": {"expr_str": text}}]
    return program


def _without_inputs(program: dict[str, Any]) -> dict[str, Any]:
    program["graph_module"]["signature"]["input_specs"] = []
    return program


@pytest.mark.parametrize("name", DAMAGE)
def test_a_graph_that_torch_does_not_write_is_refused(name: str, converted: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(converted / "model.fuseconv", tmp_path / "model.fuseconv"))
    path = bundle / "original" / "model.pt2"
    with zipfile.ZipFile(path) as archive:
        (member,) = [one for one in archive.namelist() if one.endswith("models/model.json")]
        changed = DAMAGE[name](json.loads(archive.read(member)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, changed)
    seal(bundle, read_manifest(bundle))
    with pytest.raises(RefusedError, match="the graph cannot be read"):
        describe(bundle)

"""A conversion that measures: a slow rule is matched and left alone, and the bundle says so in every place."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sleepy import write_model

from fuseconv import cli
from fuseconv.bundle import manifest as manifests
from fuseconv.bundle.manifest import open_bundle, read_manifest
from fuseconv.bundle.tuned import Speed, Tuned
from fuseconv.errors import FrozenError, UpstreamError, UsageError
from fuseconv.matching.steps import Choice, read_plan
from fuseconv.pipeline import tune as tuning
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.tune import tune_of
from fuseconv.runtime.environment import device_name
from fuseconv.runtime.model import load
from fuseconv.sources import Options

TRUSTED = Options(trust=frozenset({"code"}))
TARGETS = ("export", "torchscript")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sleepy_rules: Path) -> Path:
    """Holds a model, and the tuned bundle with its lock; of the rules, the one with an op of its own sleeps.

    The file `out` has what the conversion printed.
    """
    folder = tmp_path_factory.mktemp("tune")
    write_model(folder / "model.pt2")
    words = ["convert", f"{folder}/model.pt2", "--rules", str(sleepy_rules), "--trust", "code", "--lock"]
    words += [word for target in TARGETS for word in ("--target", target)]
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(tuning, "SECONDS", {"full": 0.3})
        patch.chdir(folder)
        assert cli.main([*words, "--tune", "full"]) == 0
    (folder / "out").write_text(out.getvalue())
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def ops_in(bundle: Path, target: str) -> set[str]:
    """Returns which of the two replacements an artifact has."""
    if target == "export":
        calls = [str(node.target) for node in torch.export.load(bundle / "export" / "model.pt2").graph.nodes]
    else:
        graph = torch.jit.load(bundle / "torchscript" / "model.pt").inlined_graph
        calls = [node.kind() for node in graph.nodes()]
    found = {"lerp-relu"} if any("sleepy" in call for call in calls) else set()
    return found | ({"abs-chain"} if sum("abs" in call for call in calls) == 1 else set())


def test_a_slow_rule_is_left_alone_and_a_good_one_stays(folder: Path) -> None:
    bundle = folder / "model.fuseconv"
    manifest = open_bundle(bundle)
    assert {rule.name: rule.count for rule in manifest.rules} == {"abs-chain": 1}
    steps = {step.rule: step for step in read_plan(bundle / "plan.json").applied}
    for target in TARGETS:
        assert ops_in(bundle, target) == {"abs-chain"}
        slow, good = steps["lerp-relu"].choices[target], steps["abs-chain"].choices[target]
        assert (slow.applied, good.applied) == (False, True)
        assert slow.fused_us > slow.unfused_us + 10_000
        assert manifest.tuned is not None
        speed = manifest.tuned.speeds[target]
        assert speed.us < speed.unfused_us < speed.fused_us


def test_explain_shows_the_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", folder / "model.fuseconv")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    at = lines.index("lerp-relu: 1 left alone")
    told = sorted(line.partition(":")[0] for line in lines[at + 1 : at + 3])
    assert told == [f"matched, left alone in {target}" for target in TARGETS]
    assert " us fused, " in lines[at + 1]
    assert "abs-chain: 1 applied" in lines
    _, out, _ = run(capsys, "explain", folder / "model.fuseconv", "--json")
    result = json.loads(out)["result"]
    statuses = {one["rule"]: one["status"] for one in result["fusions"]}
    assert statuses == {"lerp-relu": "left alone", "abs-chain": "applied"}
    (slow,) = [rule for rule in result["rules"] if rule["rule"] == "lerp-relu"]
    assert slow["applied"] == []
    assert slow["left_alone"][0]["choices"]["export"]["applied"] is False


@pytest.mark.pages
def test_bench_shows_what_each_rule_gains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("bench", folder / "model.fuseconv", "--target", "export", "--rounds", 9)
    _, out, _ = run(capsys, *arguments)
    at = out.index("times of a call with and without each class of matches, measured during the conversion")
    rows = [line.split()[:2] for line in out[at:].splitlines()[3:]]
    assert rows == [["export", "abs-chain"], ["export", "lerp-relu"]]
    assert "95 % interval" in out
    _, out, _ = run(capsys, *arguments, "--json")
    result = json.loads(out)["result"]
    good, slow = result["rules"]
    assert slow["speedup"] < slow["high"] < 0.2
    assert good["low"] < good["speedup"] < good["high"]
    assert (good["applied"], slow["applied"]) == (True, False)
    row = result["rows"][0]
    assert row["low_ms"] <= row["median_ms"] <= row["high_ms"]


def test_inspect_shows_the_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "inspect", folder / "model.fuseconv")
    assert f"timed on            {device_name('cpu')}" in out
    assert "us; every match fused" in out


def test_a_conversion_prints_what_it_left_alone(folder: Path) -> None:
    out = (folder / "out").read_text()
    for target in TARGETS:
        assert f"rule lerp-relu: matched, left alone in {target}:" in out
        assert f"{target}: " in out


def test_a_frozen_conversion_follows_the_lock_and_measures_nothing(
    folder: Path, sleepy_rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "duels", None)
    lock, bundle = folder / "fuseconv.lock", tmp_path / "model.fuseconv"
    again = {"rules": sleepy_rules, "target": TARGETS, "options": TRUSTED, "output": bundle}
    done = convert(folder / "model.pt2", frozen=lock, **again)  # type: ignore[arg-type]
    assert done.plan == read_plan(folder / "model.fuseconv" / "plan.json")
    assert read_manifest(bundle).tuned == read_manifest(folder / "model.fuseconv").tuned
    assert {ops for target in TARGETS for ops in ops_in(bundle, target)} == {"abs-chain"}
    text = lock.read_text().replace("lerp-relu(", "lerp-relu(of: another, ")
    (tmp_path / "other.lock").write_text(text)
    with pytest.raises(FrozenError, match=r"leaves alone a match in the target .* that was not found: lerp-relu"):
        convert(folder / "model.pt2", frozen=tmp_path / "other.lock", **again)  # type: ignore[arg-type]


def test_a_plan_may_choose_differently_for_each_target(folder: Path, sleepy_rules: Path, tmp_path: Path) -> None:
    plan = read_plan(folder / "model.fuseconv" / "plan.json")
    choices = {"lerp-relu": {"export": Choice(False, 2, 1, 0)}, "abs-chain": {"torchscript": Choice(False, 2, 1, 0)}}
    edited = replace(plan, steps=tuple(replace(step, choices=choices[step.rule]) for step in plan.steps))
    (tmp_path / "plan.json").write_text(edited.to_json())
    done = convert(
        folder / "model.pt2",
        rules=sleepy_rules,
        target=TARGETS,
        options=TRUSTED,
        plan=tmp_path / "plan.json",
        output=tmp_path / "out",
    )
    assert ops_in(done.bundle, "export") == {"abs-chain"}
    assert ops_in(done.bundle, "torchscript") == {"lerp-relu"}
    assert done.plan.counts(TARGETS) == {"abs-chain": 1, "lerp-relu": 1}
    assert done.tuned is None
    assert all(step.trial is not None for step in plan.steps)
    assert all(step.trial is None for step in read_plan(done.bundle / "plan.json").steps)


def test_a_target_that_cannot_be_timed_keeps_its_plan_and_says_why(
    folder: Path, sleepy_rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise UpstreamError("it ran out of memory")

    monkeypatch.setattr(tuning, "duels", fail)
    done = convert(
        folder / "model.pt2",
        rules=sleepy_rules,
        target=["export"],
        tune="quick",
        options=TRUSTED,
        output=tmp_path / "out",
    )
    assert done.plan.counts() == {"lerp-relu": 1, "abs-chain": 1}
    assert done.tuned is not None
    assert done.tuned.untimed == {"export": "it ran out of memory"}
    assert done.error() is None


@pytest.mark.parametrize("other", ["--plan", "--frozen", "--dry-run"])
@pytest.mark.parametrize("words", [("--tune", "quick"), ("--search",)], ids=["tune", "search"])
def test_what_does_not_measure_refuses_to(
    other: str, words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = [folder / "model.fuseconv" / "plan.json"] if other == "--plan" else []
    status, _, err = run(capsys, "convert", folder / "model.pt2", other, *value, *words)
    assert status == 2
    assert f"{words[0]} cannot be combined with {other}" in err


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [(None, "cpu", "none"), (None, "cuda", "quick"), ("full", "cpu", "full"), ("none", "cuda", "none")],
)
def test_only_a_gpu_is_tuned_for_by_default(wanted: Any, device: str, expected: str) -> None:
    assert tune_of(wanted, device) == expected


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown value 'fast' of tune"):
        tune_of("fast", "cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "expected"), [("here", "torchscript"), ("another GPU", "export")], ids=["here", "elsewhere"]
)
def test_load_takes_the_fastest_target_of_this_device(device: str, expected: str, folder: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(folder / "model.fuseconv", tmp_path / "copy.fuseconv"))
    speeds = {
        name: Speed(us=us, fused_us=us, unfused_us=us, noise_us=0, measured=0, classes=0)
        for name, us in (("export", 9.0), ("torchscript", 8.0))
    }
    tuned = Tuned(device=device_name("cpu") if device == "here" else device, speeds=speeds)
    manifests.seal(bundle, read_manifest(bundle).model_copy(update={"tuned": tuned}))
    assert load(bundle).target == expected
    assert load(bundle, "export").target == "export"


def test_load_passes_over_a_target_whose_runtime_is_not_installed(folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "out"
    convert(folder / "model.pt2", target=["export", "onnx"], output=bundle)
    speeds = {
        name: Speed(us=us, fused_us=us, unfused_us=us, noise_us=0, measured=0, classes=0)
        for name, us in (("export", 9.0), ("onnx", 8.0))
    }
    tuned = Tuned(device=device_name("cpu"), speeds=speeds)
    manifests.seal(bundle, read_manifest(bundle).model_copy(update={"tuned": tuned}))
    assert load(bundle).target == "onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        assert load(bundle).target == "export"

"""fuseconv.lock: what is counted, what a frozen conversion reports for a lost or new match, and a damaged file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import programs
from support.programs import capture
from torch import Tensor, nn

from fuseconv import cli
from fuseconv.errors import FileError, FrozenError, RuleError
from fuseconv.matching import lock
from fuseconv.matching.plan import Plan, plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule


class Layer(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 300), nn.Linear(300, 8), nn.LayerNorm(8)
        self.drop, self.twice = nn.Dropout(0.1), twice

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        y = self.drop(nn.functional.gelu(h)) + (h if self.twice else 0 * 1)
        return self.norm(x + self.down(y))


def model(twice: bool = False) -> nn.Module:
    return nn.Sequential(Layer(), Layer(twice))


def planned(module: nn.Module, rules: Sequence[Rule]) -> tuple[Program, Plan]:
    program = capture(module, torch.randn(3, 8))
    return program, plan(program, rules, device="cpu", targets=())


LOCKED = {"add-layer-norm": {"0": 1, "1": 1}, "linear-act": {"0": 1, "1": 1}}


def fusions(found: Mapping[str, object]) -> dict[str, object]:
    return {
        rule: modules for rule, modules in found.items() if rule in {"add-layer-norm", "linear-act", "eval-dropout"}
    }


def test_counts_are_counted_by_rule_and_module(default_rules: tuple[Rule, ...]) -> None:
    program, found = planned(model(), default_rules)
    assert found.counts()["eval-dropout"] == 2
    assert fusions(lock.count_matches(found, program)) == LOCKED


def test_every_step_that_puts_an_op_in_place_is_counted_once(default_rules: tuple[Rule, ...]) -> None:
    program = programs.bert()
    found = plan(program, default_rules, device="cpu", targets=())
    counted = {rule: sum(modules.values()) for rule, modules in lock.count_matches(found, program).items()}
    removing = {"eval-dropout", "assert-metadata", "no-op-to", "no-op-view", "add-zero"}
    assert counted == {rule: count for rule, count in found.counts().items() if rule not in removing}
    assert any(
        module.startswith("layers.1") or ".1" in module
        for module in lock.count_matches(found, program)["add-layer-norm"]
    )


def test_a_lock_is_read_as_it_was_written_and_keeps_other_bundles(tmp_path: Path) -> None:
    path = tmp_path / "fuseconv.lock"
    lock.write_lock(path, "b.fuseconv", LOCKED)
    first = path.read_text()
    lock.write_lock(path, "a.fuseconv", {"relu": {".": 3}})
    assert lock.read_lock(path).bundles == {"a.fuseconv": {"relu": {".": 3}}, "b.fuseconv": LOCKED}
    assert set(first.splitlines()) <= set(path.read_text().splitlines()) | {'  "b.fuseconv": {'}


def test_tactics_are_kept_for_their_bundle_and_left_out_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "fuseconv.lock"
    tactics = {"NVIDIA H200; linear": {"128": {"sm90 64x64": {"us": 3.7, "noise": 0.001}}}}
    lock.write_lock(path, "b.fuseconv", LOCKED)
    assert "tactics" not in path.read_text()
    lock.write_lock(path, "a.fuseconv", {}, tactics=tactics)
    lock.write_lock(path, "b.fuseconv", LOCKED)
    assert lock.read_lock(path).tactics == {"a.fuseconv": tactics}
    lock.write_lock(path, "a.fuseconv", {})
    assert lock.read_lock(path) == lock.Lock(bundles={"a.fuseconv": {}, "b.fuseconv": LOCKED})


def frozen(tmp_path: Path, program: Program, found: Plan, rules: Sequence[Rule]) -> None:
    path = tmp_path / "fuseconv.lock"
    lock.check_lock(path, "m.fuseconv", found, program, {rule.name for rule in rules})


@pytest.fixture
def locked(tmp_path: Path, default_rules: tuple[Rule, ...]) -> tuple[Program, Plan]:
    program, found = planned(model(), default_rules)
    lock.write_lock(tmp_path / "fuseconv.lock", "m.fuseconv", lock.count_matches(found, program))
    frozen(tmp_path, program, found, default_rules)
    return program, found


def test_a_lost_site_is_named_with_what_the_match_said(
    tmp_path: Path, locked: tuple[Program, Plan], default_rules: tuple[Rule, ...]
) -> None:
    with pytest.raises(FrozenError) as caught:
        frozen(tmp_path, *planned(model(twice=True), default_rules), default_rules)
    (line,) = [line for line in caught.value.what.splitlines() if "- linear-act" in line]
    assert "- linear-act at 1: 1 locked, 0 found: expected" in line
    assert "no user outside the match, found add" in line
    assert caught.value.exit_status == 1
    assert "(/bundles/m.fuseconv)" in caught.value.where


def test_a_rule_left_out_is_the_reason(
    tmp_path: Path, locked: tuple[Program, Plan], default_rules: tuple[Rule, ...]
) -> None:
    rules = [rule for rule in default_rules if rule.name != "add-layer-norm"]
    with pytest.raises(FrozenError, match=r"- add-layer-norm at 0: .* the rule is not in use") as caught:
        frozen(tmp_path, *planned(model(), rules), rules)
    assert "+ linear-residual at 1: 0 locked, 1 found" in caught.value.what


def test_a_step_turned_off_by_hand_is_the_reason(
    tmp_path: Path, locked: tuple[Program, Plan], default_rules: tuple[Rule, ...]
) -> None:
    program, found = locked
    number = next(number for number, step in enumerate(found.steps) if step.rule == "linear-act")
    steps = [replace(step, apply=at != number) for at, step in enumerate(found.steps)]
    with pytest.raises(FrozenError, match=f'- linear-act at 0: .* step {number} of the plan has "apply": false'):
        frozen(tmp_path, program, Plan(tuple(steps)), default_rules)


def test_what_takes_the_place_of_a_site_is_the_reason(tmp_path: Path, default_rules: tuple[Rule, ...]) -> None:
    program, found = planned(model(), default_rules)
    counts = lock.count_matches(found, program)
    counts["mlp"] = {"0": 1}
    del counts["linear-act"]["0"]
    lock.write_lock(tmp_path / "fuseconv.lock", "m.fuseconv", counts)
    with pytest.raises(FrozenError) as caught:
        frozen(tmp_path, program, Plan(found.steps), default_rules)
    assert "- mlp at 0: 1 locked, 0 found: linear-act matches there now" in caught.value.what
    assert "+ linear-act at 0: 0 locked, 1 found" in caught.value.what


def test_nothing_is_locked_for_the_bundle(
    tmp_path: Path, locked: tuple[Program, Plan], default_rules: tuple[Rule, ...]
) -> None:
    program, found = locked
    with pytest.raises(FrozenError, match=r"the lock has no entry for other\.fuseconv"):
        lock.check_lock(tmp_path / "fuseconv.lock", "other.fuseconv", found, program, ())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "(/)"),
        ('{"schema": 2, "bundles": {}}', "1:12 (/schema)"),
        ('{"schema": 1, "bundles": {"m": {"r": {".": "1"}}}}', "(/bundles/m/r/.)"),
        ('{"schema": 1, "bundle": {}}', "(/bundle)"),
    ],
)
def test_a_file_that_is_no_lock(text: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "fuseconv.lock").write_text(text)
    with pytest.raises(RuleError) as caught:
        lock.read_lock(tmp_path / "fuseconv.lock")
    assert where in caught.value.where


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no fuseconv\.lock"):
        lock.read_lock(tmp_path / "fuseconv.lock")


def test_the_command_line_locks_and_freezes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(model().eval(), (torch.randn(3, 8),)), tmp_path / "m.pt2")
    convert = ["convert", "m.pt2", "--target", "export"]
    assert cli.main([*convert, "--frozen"]) == 6
    assert cli.main([*convert, "--lock"]) == 0
    text = (tmp_path / "fuseconv.lock").read_text()
    assert fusions(json.loads(text)["bundles"]["m.fuseconv"]) == LOCKED
    assert cli.main([*convert, "--frozen"]) == 0
    manifest = (tmp_path / "m.fuseconv" / "manifest.json").read_text()
    capsys.readouterr()
    for dry in ([], ["--dry-run"]):
        assert cli.main([*convert, "--frozen", "--no-rule", "linear-act", "--json", *dry]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "frozen"
        assert "- linear-act at 0: 1 locked, 0 found" in error["message"]
    assert (tmp_path / "m.fuseconv" / "manifest.json").read_text() == manifest
    assert (tmp_path / "fuseconv.lock").read_text() == text
    assert cli.main([*convert, "--lock", "--frozen"]) == 2
    assert cli.main([*convert, "--lock", "--dry-run"]) == 2

"""[tool.fuseconv]: the valid settings, their precedence, and the reported origin of each."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

from fuseconv import cli
from fuseconv.matching.lock import read_lock

RULE = {
    "rules": [
        {
            "name": "own-relu",
            "stage": "fuse",
            "doc": "A rule of the project's own.",
            "match": ["y = aten.relu.default(x)"],
            "replace": ["y = aten.clamp_min.default(x, 0)"],
            "examples": {"hit": [["x: f64[n, 4]", "y = aten.relu.default(x)", "return y"]]},
        }
    ]
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Returns a function that writes the table; the working directory is a folder inside the project."""
    (tmp_path / "own.json").write_text(json.dumps(RULE))
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\nrules = 1\n")
    torch.export.save(torch.export.export(nn.ReLU(), (torch.randn(3, 8),)), tmp_path / "m.pt2")
    monkeypatch.chdir(inner)

    def write(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n[tool.fuseconv]\n{text}\n")
        return tmp_path

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = cli.main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_every_command_with_the_option_takes_it(
    project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = project('rules = "own.json"\ntarget = ["export"]')
    model = str(root / "m.pt2")
    for command in (["convert", model], ["explain", model], ["match", model], ["convert", model, "--dry-run"]):
        status, found = run(capsys, *command)
        assert status == 0, found
        assert [one["rule"] for one in found["result"]["fusions"]] == ["own-relu"]
        assert found["result"]["settings"]["rules"] == {
            "value": str(root / "own.json"),
            "from": str(root / "pyproject.toml"),
        }
    assert set(run(capsys, "convert", model)[1]["result"]["targets"]) == {"export"}
    status, found = run(capsys, "rules", "check")
    assert (status, {row["rule"] for row in found["result"]["checks"]}) == (0, {"own-relu"})
    assert [one["name"] for one in run(capsys, "rules", "list")[1]["result"]["rules"]] == ["own-relu"]


def test_the_command_line_wins(project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = project('rules = "own.json"\nno-rule = ["own-relu"]')
    status, found = run(
        capsys, "explain", str(root / "m.pt2"), "--rules", "rules/default.json", "--no-rule", "in-place"
    )
    assert (status, found["result"]["fusions"]) == (0, [])
    settings = found["result"]["settings"]
    assert settings["rules"] == {"value": "rules/default.json", "from": "command line"}
    assert settings["no-rule"] == {"value": ["in-place"], "from": "command line"}
    assert settings["device"] == {"value": "cpu", "from": "default"}


def test_rules_of_our_own_are_found_from_a_project(
    project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = project('rules = "rules/default.json"')
    assert run(capsys, "explain", str(root / "m.pt2"))[0] == 0


def test_the_report_says_it_in_words(project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = project('rules = "own.json"')
    capsys.readouterr()
    assert cli.main(["explain", str(root / "m.pt2")]) == 0
    line = f'    rules = "{root / "own.json"}"   ({root / "pyproject.toml"})'
    assert capsys.readouterr().out.splitlines()[-2:] == ["settings", line]


def test_the_lock_lies_beside_the_file(project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = project('target = ["export"]')
    assert run(capsys, "convert", str(root / "m.pt2"), "--lock")[0] == 0
    assert (root / "fuseconv.lock").exists()


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('no_rule = ["x"]', "unknown setting no_rule", "did you mean no-rule?"),
        ('targets = ["export"]', "unknown setting targets", "did you mean target?"),
        ("zzz = 1", "unknown setting zzz", "use one of "),
        ('trust = ["pickle"]', "trust cannot be set in a file", "give --trust"),
        ('output = "x"', "output cannot be set in a file", "give --output"),
        ("frozen = true", "frozen cannot be set in a file", "give --frozen"),
        ('target = "export"', "target must be a list of strings, but it is 'export'", "as a list of strings"),
        ("rules = 3", "rules must be a string, but it is 3", "as a string"),
        ('allow-mismatch = "yes"', "must be true or false", "as true or false"),
        ("rules = ", "invalid TOML", "correct the file"),
        ('rules = "nowhere.json"', "there is no rule file nowhere.json", "nowhere.json"),
        ('device = "tpu"', "tpu", "cpu"),
    ],
)
def test_a_wrong_setting(
    text: str, what: str, fix: str, project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(text)
    status, found = run(capsys, "explain", str(root / "m.pt2"))
    assert status == 2
    assert what in found["error"]["message"]
    assert fix in found["error"]["hint"]


def test_the_page_shows_settings_that_are_right(
    project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "project.md").read_text()
    root = project(re.findall(r"```toml\n\[tool.fuseconv\]\n(.*?)```", page, re.DOTALL)[0])
    (root / "fusion").mkdir()
    (root / "own.json").rename(root / "fusion" / "mine.json")
    (root / "fuseconv.lock").write_text(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    assert run(capsys, "rules", "check")[0] == 0
    assert sum(read_lock(root / "fuseconv.lock").bundles["encoder.fuseconv"]["add-layer-norm"].values()) == 4


def test_a_table_that_is_none(project: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = project("")
    (root / "pyproject.toml").write_text("[tool]\nfuseconv = 3\n")
    assert run(capsys, "rules", "list")[1]["error"]["message"] == "tool.fuseconv must be a table"

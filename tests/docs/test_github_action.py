""".github/actions/convert: what its steps run, and that docs/github-action.md and CI pass inputs that it declares."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

TEXT = (ROOT / ".github" / "actions" / "convert" / "action.yml").read_text()
ACTION = yaml.safe_load(TEXT)
STEPS = ACTION["runs"]["steps"]
PAGE = (ROOT / "docs" / "github-action.md").read_text()
WORKFLOWS = {
    "page": yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]),
    "ci": yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text()),
}
RECORDS = '#!/bin/bash\nprintf "%s|" "${0##*/}" "$@" >> "$RECORD"\necho >> "$RECORD"\nexit "${STATUS:-0}"\n'
"""A program that appends its name and its arguments to a file, and does nothing else."""


def commands(folder: Path, inputs: Mapping[str, str], status: int = 0) -> tuple[list[list[str]], list[int]]:
    """Runs the shell steps in order, up to the first that fails.

    Returns:
        The words of each command that they call, and the exit status of each step.
    """
    for name in ("fuseconv", "python"):
        (folder / name).write_text(RECORDS)
        (folder / name).chmod(0o755)
    record, told = folder / "record", folder / "told"
    told.touch()
    given = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()} | dict(inputs)
    statuses: list[int] = []
    for step in (one for one in STEPS if "run" in one):
        if step.get("if") == "inputs.package != ''" and not given["package"]:
            continue
        outputs = dict(line.split("=", 1) for line in told.read_text().splitlines())
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {f"steps.convert.outputs.{name}": value for name, value in outputs.items()}
        variables = {name: evaluated(text, known) for name, text in step["env"].items()}
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "RECORD": str(record)}
        environment |= {"GITHUB_OUTPUT": str(told), "RUNNER_TEMP": str(folder)}
        done = subprocess.run(
            ["bash", "-euc", step["run"]],
            cwd=folder,
            env=environment | {"STATUS": str(status)} | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        statuses.append(done.returncode)
        if done.returncode:
            break
    lines = record.read_text().splitlines() if record.exists() else []
    return [line.split("|")[:-1] for line in lines], statuses


def evaluated(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)


@pytest.mark.parametrize(
    ("inputs", "convert"),
    [
        ({}, ["--frozen"]),
        ({"lock": "false"}, []),
        (
            {"rules": "my rules.json", "targets": "aoti,onnx"},
            ["--rules", "my rules.json", "--target", "aoti,onnx", "--frozen"],
        ),
        (
            {"arguments": "--input\nx=f32[batch:1..8, 4]\n--trust\ncode\n"},
            ["--frozen", "--input", "x=f32[batch:1..8, 4]", "--trust", "code"],
        ),
        (
            {"arguments": "$(touch planted)\n`touch planted`\n*"},
            ["--frozen", "$(touch planted)", "`touch planted`", "*"],
        ),
    ],
)
def test_the_steps_run(inputs: dict[str, str], convert: list[str], tmp_path: Path) -> None:
    found, statuses = commands(tmp_path, {"model": "a b.pt2", "output": "c d.fuseconv", **inputs})
    bundle = str(tmp_path / "c d.fuseconv")
    assert found == [
        ["python", "-m", "pip", "install", "fuseconv[cpu,huggingface]"],
        ["fuseconv", "convert", "a b.pt2", "--output", "c d.fuseconv", *convert],
        ["fuseconv", "verify", bundle],
        ["fuseconv", "report", bundle, "--output", str(tmp_path / "fuseconv-report.html")],
    ]
    assert statuses == [0, 0, 0, 0]
    assert not (tmp_path / "planted").exists()


def test_a_command_that_fails_fails_its_step(tmp_path: Path) -> None:
    found, statuses = commands(tmp_path, {"model": "a.pt2", "package": ""}, status=3)
    assert ([words[1] for words in found], statuses) == (["convert"], [3])


def test_a_lock_that_is_neither_true_nor_false_is_an_error(tmp_path: Path) -> None:
    assert commands(tmp_path, {"model": "a.pt2", "package": "", "lock": "yes"}) == ([], [2])


def test_every_input_is_declared_and_used() -> None:
    assert (
        {*re.findall(r"inputs\.([\w-]+)", TEXT)}
        == {*ACTION["inputs"]}
        == {*re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)}
    )


def test_no_value_is_text_of_a_script() -> None:
    assert not [step["name"] for step in STEPS if "${{" in step.get("run", "")]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_pass_what_is_declared(name: str) -> None:
    steps: list[dict[str, Any]] = [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]
    (given,) = (step["with"] for step in steps if "actions/convert" in step.get("uses", ""))
    assert {"model"} <= {*given} <= {*ACTION["inputs"]}
    used = [step["uses"] for step in [*steps, *STEPS] if "uses" in step]
    assert not [one for one in used if not one.startswith("./") and not re.search(r"@v\d+", one)]

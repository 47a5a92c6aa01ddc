"""docs/drafting.md: its commands print what the page shows, and the drafted op computes what it replaces."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

from fuseconv import cli
from fuseconv.contract.spec import Contract
from fuseconv.errors import FileError
from fuseconv.matching.plan import plan
from fuseconv.pipeline.draft import draft
from fuseconv.program.captured import Program
from fuseconv.proof.rule_check import check_examples
from fuseconv.rulebook.own_rules import load_rules, named
from fuseconv.rulebook.packs import load_ops, op_files

PAGE = (ROOT / "docs" / "drafting.md").read_text()
BLOCK = re.compile(r"^```(python|json|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of the page."""
    folder = tmp_path_factory.mktemp("drafting")
    (code,) = (text for kind, text in BLOCK.findall(PAGE) if kind == "python")
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(code, "model.py", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
    return folder


@pytest.mark.pages
def test_the_page_shows_what_its_commands_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    blocks = BLOCK.findall(PAGE)
    shown = [(text, blocks[at + 1]) for at, (kind, text) in enumerate(blocks[:-1]) if kind == "sh"]
    printed = [(command, expected) for command, (kind, expected) in shown if kind == "text"]
    assert len(printed) == 4
    for command, expected in printed:
        status = cli.main(command.split()[1:])
        out, err = capsys.readouterr()
        assert (err[err.index("error:") :] if "error:" in expected else out).rstrip() == expected.rstrip()
        assert status == (2 if "error:" in expected else 0)
    (rules,) = (text for kind, text in blocks if kind == "json")
    assert Path("mlp.json").read_text() == rules

    subprocess.run(["sh", "softcap/build.sh"], check=True, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    known = load_rules("softcap")
    load_ops(op_files(known), {"code"})
    rows = check_examples(named("softcap", known))
    assert [row.check for row in rows] == ["hit 0", "variants", "algebra", "miss 0"]
    assert all(row.ok for row in rows)
    exported = torch.export.load("model.pt2")
    found = plan(Program(exported, Contract((), ()), ()), known, device="cpu", targets=["export"])
    assert [step.nodes[-1] for step in found.steps if step.rule == "softcap"] == ["mul", "mul_1"]

    # Its tests are called here and not collected, because an op can be registered only once in a process.
    path = folder / "softcap" / "tests" / "test_softcap.py"
    tests: dict[str, Any] = {"__file__": str(path)}
    monkeypatch.setattr(runpy, "run_path", lambda _: {"reference": lambda x: torch.tanh(x / 5) * 5})
    exec(path.read_text(), tests)
    for dtype in tests["DTYPES"]:
        for sizes in tests["SIZES"]:
            tests["test_it_computes_its_reference"](dtype, sizes)
    tests["test_any_layout"]()
    tests["test_special_values"](float("nan"))
    tests["test_its_registration"]()


def test_a_file_is_tested_again_when_it_is_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"

    def save(lines: str) -> None:
        rule = {"name": "mine", "stage": "fuse", "doc": "Two.", "match": [f"y = aten.{lines}.default(x)"]}
        path.write_text(json.dumps({"rules": [{**rule, "replace": ["y = aten.neg.default(x)"]}]}))

    def save_and_wait(_: float) -> None:
        if not saves:
            raise KeyboardInterrupt
        save(saves.pop(0))

    save("tanh")
    saves = ["tanhh", "sinh"]
    monkeypatch.setattr("time.sleep", save_and_wait)
    assert cli.main(["rules", "test", str(path), str(folder / "model.pt2")]) == 0
    said = re.sub(r"\d\d:\d\d:\d\d", "saved", capsys.readouterr().out)
    assert said.count("saved") == 3
    assert "saved\n  mine: 2 hits at tanh, tanh_1\n" in said
    assert "saved\n  error: rule mine: unknown op aten.tanhh.default\n" in said
    assert "saved\n  mine: 0 hits\n" in said


@pytest.mark.parametrize(
    ("output", "what"), [("model.pt2", "the output path already exists"), ("no/where", "folder of the output")]
)
def test_nothing_is_overwritten(folder: Path, output: str, what: str) -> None:
    with pytest.raises(FileError, match=what):
        draft(folder / "model.pt2", first=["div"], last=["mul"], output=folder / output)

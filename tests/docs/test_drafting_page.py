"""docs/drafting.md: its commands print what the page shows, and the drafted op computes what it replaces."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT

from fuseconv import cli
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


def test_the_page_shows_what_its_commands_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    blocks = BLOCK.findall(PAGE)
    shown = [(text, blocks[at + 1]) for at, (kind, text) in enumerate(blocks[:-1]) if kind == "sh"]
    printed = [(command, expected) for command, (kind, expected) in shown if kind == "text"]
    assert len(printed) == 4
    for command, expected in printed:
        status = cli.main([*command.split()[1:], "--quiet"])
        out, err = capsys.readouterr()
        assert (err if "error:" in expected else out).rstrip() == expected.rstrip()
        assert status == (2 if "error:" in expected else 0)
    (rules,) = (text for kind, text in blocks if kind == "json")
    assert Path("mlp.json").read_text() == rules
    assert cli.main(["rules", "draft", "model.pt2", "--from=div", "--to=mul", "--op=softcap"]) == 6
    assert "the output exists" in capsys.readouterr().err

    subprocess.run(["sh", "softcap/build.sh"], check=True, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    known = load_rules("softcap")
    load_ops(op_files(known), {"code"})
    rows = check_examples(named("softcap", known))
    assert [row.check for row in rows] == ["hit 0", "variants", "algebra", "miss 0"]
    assert all(row.ok for row in rows)
    assert cli.main(["rules", "test", "softcap", "model.pt2", "--once", "--quiet", "--trust=code"]) == 0
    assert capsys.readouterr().out == "softcap: 2 hits at mul, mul_1\n"

    # The file is run as pytest runs it; it is not collected here, because an op can be registered only once.
    monkeypatch.setattr(runpy, "run_path", lambda _: {"reference": lambda x: torch.tanh(x / 5) * 5})
    tests = {}
    exec((folder / "softcap" / "tests" / "test_softcap.py").read_text(), tests)
    for dtype in tests["DTYPES"]:
        for sizes in tests["SIZES"]:
            tests["test_it_computes_its_reference"](dtype, sizes)
    tests["test_any_layout"]()
    tests["test_special_values"](float("nan"))
    tests["test_its_registration"]()


def test_a_file_is_tested_again_when_it_is_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuseconv.commands import rules_test

    path = tmp_path / "mine.json"
    text = '{"rules": [{"name": "mine", "stage": "fuse", "doc": "Two.", "match": ["y = aten.tanh.default(x)"], "replace": %s}]}'
    path.write_text(text % '["y = aten.tanh.default(x)"]')
    saves = iter([text % '["y = aten.tanhh.default(x)"]', text % '["y = aten.sin.default(x)"]', None])

    def save(seconds: float) -> None:
        saved = next(saves)
        if saved is None:
            raise KeyboardInterrupt
        path.write_text(saved)

    monkeypatch.setattr(rules_test.time, "sleep", save)
    assert cli.main(["rules", "test", str(path), str(folder / "model.pt2"), "--quiet"]) == 0
    print(capsys.readouterr())

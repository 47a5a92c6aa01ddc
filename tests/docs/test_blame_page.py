"""docs/blame.md: its models are blamed for what the page shows, line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

from fuseconv import cli

PAGE = (ROOT / "docs" / "blame.md").read_text()
BLOCK = re.compile(r"^```(python|json|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d\.\d+e[-+]\d+")
"""Rounding errors, which differ between processors."""


@pytest.mark.pages
def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [(kind, text) for kind, text in BLOCK.findall(PAGE)]
    exec(compile(blocks[0][1], "model.py", "exec"), {"__name__": "__main__"})
    (rules,) = (text for kind, text in blocks if kind == "json")
    Path("fast.json").write_text(rules)
    shown = [(text, blocks[at + 1][1]) for at, (kind, text) in enumerate(blocks) if kind == "sh"]
    assert len(shown) == 3
    for command, expected in shown:
        capsys.readouterr()
        status = cli.main(command.split()[1:])
        assert NUMBER.sub("#", capsys.readouterr().out.rstrip()) == NUMBER.sub("#", expected.rstrip())
        assert status == (0 if "a limit of the runtime" in expected else 1)

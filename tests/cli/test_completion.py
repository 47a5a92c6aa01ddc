"""Completion in a shell: targets, dtypes, kinds of trust, rules and files, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, cold_cli

CODE = "import sys; from fuseconv.cli import main; status = main(); sys.exit(100 if 'torch' in sys.modules else status)"


def complete(line: str, folder: Path = ROOT) -> tuple[int, list[str], str]:
    """Returns the exit status, the completions of the last word of a line, and what stderr has."""
    environment = {
        **os.environ,
        "_FUSECONV_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = cold_cli.run([], folder, environment)
    assert not done.torch
    return done.status, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fuseconv ver", ["plain,verify"]),
        ("fuseconv convert --targ", ["plain,--target"]),
        ("fuseconv convert --target on", ["plain,onnx", "plain,onnx-plugin"]),
        ("fuseconv convert --target export,t", ["plain,export,torchscript"]),
        ("fuseconv convert --target onnx,on", ["plain,onnx,onnx-plugin"]),
        ("fuseconv run bundle --target ex", ["plain,export"]),
        ("fuseconv tune bundle --target ao", ["plain,aoti"]),
        ("fuseconv match m.pt2 --dtype bf", ["plain,bf16", "plain,bfloat16"]),
        ("fuseconv match m.pt2 --dtype ha", ["plain,half"]),
        ("fuseconv explain m.pt2 --trust ", ["plain,pickle", "plain,torchscript", "plain,native", "plain,code"]),
        ("fuseconv inspect m.pt2 --device cu", ["plain,cuda"]),
        ("fuseconv convert m.pt2 --no-rule add-layer", ["plain,add-layer-norm"]),
        ("fuseconv convert m.pt2 --rules rules/norm --no-rule linear-a", []),
        ("fuseconv rules show mul-a", ["plain,mul-add"]),
        ("fuseconv convert mod", ["file,mod"]),
        ("fuseconv convert m.pt2 --plan p", ["file,p"]),
    ],
)
def test_a_word_is_completed(line: str, expected: list[str]) -> None:
    status, found, err = complete(line)
    assert (status, err) == (0, "")
    assert found[: len(expected)] == expected
    assert "--no-rule" in line or found == expected


@pytest.mark.parametrize("line", ["fuseconv verfy --all", "fuseconv convert m.pt2 --rules absent.json --no-rule x"])
def test_a_line_that_is_wrong_completes_nothing(line: str) -> None:
    assert complete(line) == (1, [], "")


def test_a_wrong_project_completes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fuseconv]\nnothing = 1\n")
    assert complete("fuseconv convert --targ", tmp_path) == (1, [], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_command_prints_the_script(shell: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_FUSECONV_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_FUSECONV_COMPLETE" in done.stdout


def test_bash_runs_the_script() -> None:
    script = (
        'eval "$(_FUSECONV_COMPLETE=bash_source fuseconv)"; COMP_WORDS=(fuseconv ver); COMP_CWORD=1; '
        '_fuseconv_completion fuseconv; echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("verify\n", "")

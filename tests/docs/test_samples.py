"""Every command of the README and of every sample runs, in order, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, warm_cli

PAGES = sorted((ROOT / "samples").glob("*/README.md"))
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIRST = "01_first_conversion"
"""Its first command is run as it is; the others in forks of a process that has imported torch already."""
STATUS = re.compile(r"#\s*exits (\d+)\s*$")


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """Returns each command of a page (`$ ` lines, continued by a backslash) with the output lines printed under it."""
    commands: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page.read_text()):
        lines = iter(block.splitlines())
        for line in lines:
            if line.startswith("$ "):
                command = line[2:]
                while command.endswith("\\"):
                    command += "\n" + next(lines)
                commands.append((command, []))
            else:
                commands[-1][1].append(line)
    return commands


def shape_of(line: str) -> str:
    """Folds what differs from run to run: numbers, hashes, padding."""
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "#", line)
    line = re.sub(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", line)
    return re.sub(r"[\s─━]+", " ", line).strip()


def assert_printed(expected: list[str], actual: str) -> None:
    """Asserts that the lines stand in the output in this order; `...` stands for any lines."""
    remaining = iter(shape_of(line) for line in actual.splitlines())
    for line in expected:
        if line.strip() in {"", "..."}:
            continue
        assert any(shape_of(line) == found for found in remaining), f"not printed: {line}\n--- actual:\n{actual}"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a `fuseconv` that has torch imported."""
    folder = tmp_path_factory.mktemp("warm")
    with warm_cli.command(folder):
        yield folder


@pytest.mark.pages
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_sample(page: Path, warm: Path, tmp_path: Path) -> None:
    folder = tmp_path / page.parent.name
    shutil.copytree(page.parent, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    found = sessions(page)
    assert found, f"{page} shows no command"
    is_cold = page.parent.name == FIRST
    for command, expected in found:
        environment["PATH"] = path if is_cold else f"{warm}{os.pathsep}{path}"
        is_cold = is_cold and "fuseconv " not in command
        status = STATUS.search(command)
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == (int(status[1]) if status else 0), f"$ {command}\n{done.stdout}\n{done.stderr}"
        assert_printed(expected, done.stdout + done.stderr)

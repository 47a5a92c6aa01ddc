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
from support.pages import assert_printed, sessions

PAGES = sorted((ROOT / "samples").glob("*/README.md"))
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIRST = "01_first_conversion"
"""Its first command is run as it is; the others in forks of a process that has imported torch already."""
STATUS = re.compile(r"#\s*exits (\d+)\s*$")


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
    found = [one for block in BLOCK.findall(page.read_text()) for one in sessions(block)]
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

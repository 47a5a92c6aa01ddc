"""Every command and every script of the recipes runs, in order, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, warm_cli
from support.pages import assert_printed, sessions

RECIPES = ROOT / "docs" / "recipes"
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(\w+\.py)`")

pytestmark = [pytest.mark.pages, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables with a `fuseconv` on the path that has torch imported."""
    folder = tmp_path_factory.mktemp("warm")
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    with warm_cli.command(folder):
        yield {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PATH": path}


class Recipe:
    """A page whose blocks are carried out one after the other in a folder."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment, self.printed = folder, environment, ""
        text = (RECIPES / f"{name}.md").read_text()
        self.blocks = iter(
            (text[: found.start()].rstrip().rpartition("\n\n")[2], found[1], textwrap.dedent(found[2]))
            for found in BLOCK.finditer(text)
        )

    def follow(self, until: str = "") -> None:
        """Carries out the blocks up to the first one that contains a text, included; by default, all."""
        for before, language, block in self.blocks:
            self._carry_out(before, language, block)
            if until and until in block:
                return

    def _carry_out(self, before: str, language: str, block: str) -> None:
        if language == "text":
            assert_printed(block.splitlines(), self.printed)
        elif language == "python" and (named := FILE.search(before)):
            (self.folder / named[1]).write_text(block)
        elif language == "python":
            self._run([sys.executable, "-c", block])
        else:
            for command, expected in sessions(block):
                self._run(["bash", "-euc", command])
                assert_printed(expected, self.printed)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{command[-1]}\n{self.printed}"


@pytest.mark.parametrize("name", ["images", "speech"])
def test_a_recipe(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    Recipe(name, tmp_path, environment).follow()


def test_recipes_of_the_recommender(tmp_path: Path, environment: dict[str, str]) -> None:
    """The model of one page is trained on another, converted on the first, and both go on with the bundle."""
    recommender, trained, upgrading = (
        Recipe(name, tmp_path, environment) for name in ("recommender", "trained", "upgrading-torch")
    )
    recommender.follow("class Ranker")
    trained.follow("python train.py")
    recommender.follow()
    further = (tmp_path / "train.py").read_text().replace("range(21)", "range(31)").replace("ranker.s", "trained.s")
    subprocess.run([sys.executable, "-c", further], cwd=tmp_path, check=True)
    trained.follow()
    upgrading.follow("--frozen --dry-run")
    (tmp_path / "new.fuseconv").symlink_to("trained.fuseconv")  # "convert to another name"
    upgrading.follow()
    assert (tmp_path / "upgrade.html").is_file()

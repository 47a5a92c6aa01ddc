"""The rule pages of the site: each rule has one, links resolve, and no box of a picture covers another."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support import ROOT

from fuseconv.rulebook.rule_file import load_rules

pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("docs") / "rules"
    subprocess.run([sys.executable, ROOT / "docs" / "make_rule_pages.py", made], check=True)
    return made


def test_every_rule_has_a_page_and_a_picture_and_nothing_else_has(folder: Path) -> None:
    rules = [rule.name for rule in load_rules(ROOT / "rules" / "default.json")]
    expected = {"README.md", *(f"{name}.md" for name in rules), *(f"{name}.svg" for name in rules)}
    assert {path.name for path in folder.iterdir()} == expected
    for name in rules:
        assert f"]({name}.md)" in (folder / "README.md").read_text()
        assert f"]({name}.svg)" in (folder / f"{name}.md").read_text()


def test_a_page_says_what_its_rule_says(folder: Path) -> None:
    for rule in load_rules(ROOT / "rules" / "default.json"):
        page = (folder / f"{rule.name}.md").read_text()
        for text in (rule.doc, *rule.replace, *(line for lines in rule.texts for line in lines)):
            assert text in page, rule.name


def test_every_link_leads_somewhere(folder: Path) -> None:
    for path in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
            # The pages are those of docs/rules: what is not among them lies around that folder.
            there = folder / target if "/" not in target else Path(os.path.normpath(ROOT / "docs" / "rules" / target))
            assert there.is_file(), f"{path.name}: {target}"


def test_no_box_covers_another(folder: Path) -> None:
    for path in folder.glob("*.svg"):
        root = ET.fromstring(path.read_text())
        wide, tall = float(root.attrib["width"]), float(root.attrib["height"])
        space = "{http://www.w3.org/2000/svg}"
        for group in root.iter(f"{space}g"):
            left, top = map(float, re.findall(r"-?\d+", group.attrib["transform"]))
            rows = [
                [float(box.attrib[key]) for key in ("x", "y", "width", "height")] for box in group.iter(f"{space}rect")
            ]
            for x, y, width, height in rows:
                assert left + x >= 0
                assert top + y >= 0
                assert left + x + width <= wide
                assert top + y + height <= tall
            for (x, y, width, height), (a, b, across, down) in combinations(rows, 2):
                assert x + width <= a or a + across <= x or y + height <= b or b + down <= y, path.name

"""docs/rules is what `python docs/make_rule_pages.py` writes, and its pictures can be read: no box covers another."""

import re
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def pages():
    sys.path.insert(0, str(DOCS))
    try:
        import make_rule_pages
    finally:
        sys.path.remove(str(DOCS))
    return make_rule_pages.pages()


def test_the_pages_are_those_of_the_rules(pages):
    written = {path.name: path.read_text() for path in (DOCS / "rules").iterdir()}
    differing = sorted(name for name in pages.keys() | written.keys() if pages.get(name) != written.get(name))
    assert differing == [], "run `python docs/make_rule_pages.py`"


def test_every_link_leads_somewhere(pages):
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)]+)\)", text) if name.endswith(".md") else ():
            assert (DOCS / "rules" / target).exists(), f"{name}: {target}"


def test_no_box_covers_another(pages):
    for name in filter(lambda name: name.endswith(".svg"), pages):
        root = ET.fromstring(pages[name])
        wide, tall = float(root.get("width")), float(root.get("height"))
        space = "{http://www.w3.org/2000/svg}"
        for group in root.iter(f"{space}g"):
            left, top = map(float, re.findall(r"-?\d+", group.get("transform")))
            rows = [
                [float(box.get(key)) for key in ("x", "y", "width", "height")] for box in group.iter(f"{space}rect")
            ]
            for x, y, width, height in rows:
                assert left + x >= 0
                assert top + y >= 0
                assert left + x + width <= wide
                assert top + y + height <= tall
            for (x, y, width, height), (a, b, across, down) in combinations(rows, 2):
                assert x + width <= a or a + across <= x or y + height <= b or b + down <= y, name

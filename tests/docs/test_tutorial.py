"""docs/tutorial.ipynb: its cells run, in order and in one namespace, and print what the notebook shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT, warm_python

CELLS = [
    cell for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
]
BETWEEN = "<the next cell>\n"


@pytest.mark.pages
def test_the_cells_print_what_the_notebook_shows(tmp_path: Path) -> None:
    code = f"\nprint(end={BETWEEN!r})\n".join("".join(cell["source"]) for cell in CELLS)
    done = warm_python.run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in CELLS]
    assert done.stdout.split(BETWEEN) == shown

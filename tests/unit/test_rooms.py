"""The layout of the package: few files at its root, one sentence per package, and no unneeded imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

import fuseconv

TESTS = ROOT / "tests"
PACKAGE = Path(fuseconv.__file__).parent


def test_few_files_stand_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 5


def test_every_room_says_in_a_sentence_what_it_is() -> None:
    rooms = [path.parent for path in PACKAGE.glob("*/__init__.py")]
    assert len(rooms) > 15
    for room in rooms:
        said = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
        assert said, room
        assert said.partition("\n")[0].endswith("."), room


def test_what_loads_a_bundle_neither_captures_nor_matches_nor_proves() -> None:
    asked = "import sys, fuseconv; fuseconv.load; print(*(one for one in sys.modules if one.startswith('fuseconv.')))"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[1] for name in said.split()}
    assert "runtime" in loaded
    assert not loaded & {
        "capture",
        "commands",
        "matching",
        "numerics",
        "parity",
        "pipeline",
        "proof",
        "sizes",
        "sources",
    }


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_tests_import_what_they_share_from_support(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in (*modules, *names) if name.rpartition(".")[2].startswith("test_")]
    if path.parent == TESTS / "support":
        assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]

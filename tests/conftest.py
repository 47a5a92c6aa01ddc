"""Fixtures that several files share: each expensive artifact is built once a session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_bundle
from small_bundle import Block

from fuseconv.capture import Program
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_file import load_rules
from fuseconv.targets import TARGETS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write tests/golden/*.txt anew")
    parser.addoption(
        "--every-variant", action="store_true", help="try every respelled variant of every rule's examples"
    )


@pytest.fixture(scope="session")
def default_rules() -> tuple[Rule, ...]:
    return load_rules("rules/default.json")


@pytest.fixture(scope="session")
def canonical_rules(default_rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that settle how things are spelled, without those that fuse."""
    return tuple(rule for rule in default_rules if rule.stage != "fuse")


@pytest.fixture(scope="session")
def original() -> Program:
    return small_bundle.program(Block(fused=False))


@pytest.fixture(scope="session")
def fused() -> Program:
    return small_bundle.program(Block(fused=True))


@pytest.fixture(scope="session")
def bundle(original: Program, fused: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all targets; tests only read it."""
    output = tmp_path_factory.mktemp("bundle") / "block.fuseconv"
    small_bundle.write_bundle(original, fused, output, list(TARGETS), scratch=tmp_path_factory.mktemp("scratch"))
    return output


@pytest.fixture
def bundle_copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(bundle, tmp_path / "copy.fuseconv"))

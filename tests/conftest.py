"""Options and artifacts shared by the tests."""

import pytest

from fuseconv.rule_file import load_rules


def pytest_addoption(parser):
    parser.addoption("--update-goldens", action="store_true", help="write tests/golden/*.txt anew")


@pytest.fixture(scope="session")
def default_rules():
    return load_rules("rules/default.json")

"""docs/training.md: its example runs and prints what the page says."""

import re
from pathlib import Path

import pytest
from support import warm_python

PAGE = Path("docs/training.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.mark.pages
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    result = warm_python.run(block("python"), tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == block("text")

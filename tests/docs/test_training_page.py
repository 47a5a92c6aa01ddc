"""docs/training.md and docs/compile.md: their examples run and print what the pages say."""

import re
from pathlib import Path

import pytest
from support import warm_python


def block(page: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", Path(page).read_text(), re.DOTALL)
    return found


@pytest.mark.pages
@pytest.mark.parametrize("page", ["docs/training.md", "docs/compile.md"])
def test_the_example_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    result = warm_python.run(block(page, "python"), tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == block(page, "text")

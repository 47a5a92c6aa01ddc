"""The pages on rules: the example runs and prints what its page shows, and the table lists all functions."""

import re
from pathlib import Path

from support import warm_python

from fuseconv.rulebook.predicates import FUNCTIONS

PAGE = Path("docs/writing-rules.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "hardswish.json").write_text(block("json"))
    result = warm_python.run(block("python"), tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == block("text")


def test_every_function_is_in_the_table() -> None:
    rows = [f"| `{function.usage}` | {function.doc} |" for _, function in sorted(FUNCTIONS.items())]
    assert "\n".join(rows) in Path("docs/rule-functions.md").read_text()

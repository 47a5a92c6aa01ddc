"""docs/training.md: its example runs and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path("docs/training.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_what_the_page_says() -> None:
    result = subprocess.run(
        [sys.executable, "-c", block("python")],
        env={"PYTHONPATH": str(Path.cwd()), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == block("text")

"""docs/generation.md: its examples run and print what the page says."""

import contextlib
import io
from pathlib import Path

import pytest
from support import generating

EXAMPLES = [code for code in generating.blocks("python") if 'fuseconv.load("llama' in code]


@pytest.mark.parametrize(("code", "text"), list(zip(EXAMPLES, generating.blocks("text"), strict=True)))
def test_an_example_prints_what_the_page_says(
    code: str, text: str, generating_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(generating_folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    assert said.getvalue() == text

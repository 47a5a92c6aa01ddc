"""docs/generation.md: its examples run and print what the page says."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from support import ROOT, generating

EXAMPLES = [code for code in generating.blocks("python") if 'fuseconv.load("llama' in code]


@pytest.mark.pages
@pytest.mark.parametrize(("code", "text"), list(zip(EXAMPLES, generating.blocks("text"), strict=True)))
def test_an_example_prints_what_the_page_says(
    code: str, text: str, generating_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(generating_folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    assert said.getvalue() == text


@pytest.mark.parametrize("file", ["cpu_generate.json", "h100_generate.json", "h200_generate.json"])
def test_all_tokens_were_those_of_transformers(file: str) -> None:
    assert all(row["equal"] == 1 for row in json.loads((ROOT / "bench/results" / file).read_text())["rows"])


def test_the_figures_of_a_long_cache_are_those_of_the_file() -> None:
    rows = json.loads((ROOT / "bench/results/cpu_long_cache.json").read_text())["rows"]
    page = (ROOT / "docs/adr/0037-state-in-place.md").read_text()
    assert all(row["equal"] for row in rows)
    times = {(row["bundle"], row["target"]): row["cpu_ms"] for row in rows}
    for target in ("aoti", "torchscript"):
        assert f"| {target} | {times['functional', target]} | {times['in place', target]} |" in page

"""The HTML file: text of a stranger's bundle stays data, and a page that was not built is an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.reported import SOURCE, data_of

from fuseconv.errors import FileError, UnsupportedError
from fuseconv.matching.steps import Miss
from fuseconv.report import page
from fuseconv.report.described import describe
from fuseconv.report.page import Report, render, write

HOSTILE = (
    "</script><script>alert(1)</script>",
    "</SCRIPT >",
    "<!-- <script>",
    "]]>",
    '"\\u003c',
    "\u2028\u2029\x00",
    "<img src=x onerror=alert(1)>",
    "{{script}}",
    "null</script>",
)


@pytest.fixture(autouse=True)
def without_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUILT", SOURCE)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_bundle_does_not_end_its_element(text: str, bundle: Path) -> None:
    miss = Miss(text, text, text, text, text, text)
    written = render(Report("0", (replace(describe(bundle), name=text, misses=(miss,)),)))
    assert written.count(b"</script>") == SOURCE.read_bytes().count(b"</script>")
    (found,) = data_of(written)["bundles"]
    assert (found["name"], found["misses"][0]["reason"]) == (text, text)


def test_numbers_that_are_not_finite_are_null(bundle: Path) -> None:
    described = replace(describe(bundle), tolerance={"atol": float("nan"), "rtol": float("inf")})
    assert data_of(render(Report("0", (described,))))["bundles"][0]["tolerance"] == {"atol": None, "rtol": None}


def test_a_page_that_was_not_built(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUILT", tmp_path / "report.html")
    with pytest.raises(UnsupportedError, match="npm was not found") as raised:
        write(Report("0", (describe(bundle),)), tmp_path / "out.html")
    assert raised.value.where == str(tmp_path / "report.html")
    assert "make build" in raised.value.fix
    assert not (tmp_path / "out.html").exists()


def test_a_file_that_cannot_be_written(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write(Report("0", (describe(bundle),)), tmp_path / "absent" / "out.html")


def test_the_page_allows_nothing_but_its_own_script_and_style() -> None:
    text = SOURCE.read_text()
    assert 'http-equiv="Content-Security-Policy"' in text
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in (SOURCE.parents[1] / "build.mjs").read_text()

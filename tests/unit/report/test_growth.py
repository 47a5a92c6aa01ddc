"""The errors that `fuseconv blame --json` measured, as a report reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseconv.errors import FileError, FuseconvError, UsageError
from fuseconv.report.growth import read_growth

BORDER: dict[str, Any] = {
    "node": "gelu",
    "layer": "layers.0",
    "op": "aten.gelu.default",
    "rule": None,
    "rms_fp64": 1.0,
    "original": 1e-8,
    "fused": None,
}
RESULT: dict[str, Any] = {"verdicts": [], "compared": ["export"], "unable": {}, "case": "given", "borders": [BORDER]}
PRINTED: dict[str, Any] = {"schema": 1, "ok": True, "command": "blame", "result": RESULT, "error": None}
FAILED = {
    "code": "unsupported",
    "message": "the bundle lacks the original's weight w",
    "where": "",
    "hint": "add MODEL",
}


def test_the_result_of_blame_is_read(tmp_path: Path) -> None:
    (tmp_path / "blame.json").write_text(json.dumps(PRINTED))
    found = read_growth(tmp_path / "blame.json", {"gelu"})
    assert (found.case, found.compared) == ("given", ("export",))
    assert (found.borders[0].node, found.borders[0].original, found.borders[0].fused) == ("gelu", 1e-8, None)


WRONG: dict[str, tuple[Any, type[FuseconvError], str]] = {
    "no JSON": ("{", UsageError, "not the output of"),
    "another command": ({**PRINTED, "command": "verify"}, UsageError, "command"),
    "another result": ({**PRINTED, "result": {"rows": []}}, UsageError, "not the output of"),
    "a text for a number": (
        {**PRINTED, "result": {**RESULT, "borders": [{**BORDER, "fused": "x"}]}},
        UsageError,
        "fused",
    ),
    "a failure": ({**PRINTED, "ok": False, "result": {}, "error": FAILED}, UsageError, "failed: the bundle lacks"),
    "another model": (
        {**PRINTED, "result": {**RESULT, "borders": [{**BORDER, "node": "relu"}]}},
        UsageError,
        "another model: the bundle has no node relu",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_files_are_errors(name: str, tmp_path: Path) -> None:
    value, error, words = WRONG[name]
    (tmp_path / "blame.json").write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(error, match=words):
        read_growth(tmp_path / "blame.json", {"gelu"})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_growth(tmp_path / "absent.json", ())

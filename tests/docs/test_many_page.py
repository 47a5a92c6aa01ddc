"""docs/many.md: its figures are those of the result file, and its table of fields has all of them."""

from __future__ import annotations

import dataclasses
import json
import re

from support import ROOT

from fuseconv.many.row import Row

PAGE = (ROOT / "docs" / "many.md").read_text()


def test_the_figures() -> None:
    rows = json.loads((ROOT / "bench" / "results" / "cpu_many.json").read_text())["rows"]
    found = {row["measure"]: row for row in rows}
    faults, one, two = found["faults"], found["workers 1"], found["workers 2"]
    assert (faults["exit_statuses"], faults["made_twice"]) == ([130, 0], 0)
    assert f"| {faults['bundles']} of {faults['models']}, {faults['made_twice']} made twice |" in PAGE
    assert f"| {faults['made'][0]} and {faults['made'][1]} |" in PAGE
    assert f"| {faults['attempts']} |" in PAGE
    assert f"| {one['bundles_per_minute']} and {two['bundles_per_minute']} |" in PAGE
    assert f"| {one['seconds_per_conversion']} s and {two['seconds_per_conversion']} s |" in PAGE


def test_every_field_of_a_row_is_explained() -> None:
    table = PAGE.partition("| key | value |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert named == {field.name for field in dataclasses.fields(Row)}

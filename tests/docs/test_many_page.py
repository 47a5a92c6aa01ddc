"""docs/many.md: its figures are those of the result file, and its table of fields has all of them."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from support import ROOT

from fuseconv.many.row import Row

PAGE = (ROOT / "docs" / "many.md").read_text()


def measured(file: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a result file by what they measure."""
    rows = json.loads((ROOT / "bench" / "results" / file).read_text())["rows"]
    return {row["measure"]: row for row in rows}


def busy(row: dict[str, Any], jobs: int) -> float:
    """Returns the part of the time between the first and the last row in which the workers were converting."""
    return float(row["seconds_per_conversion"] * row["bundles_per_minute"] / 60 / jobs)


def test_the_figures() -> None:
    found = measured("cpu_many.json")
    faults, one, two = found["faults"], found["workers 1"], found["workers 2"]
    assert (faults["exit_statuses"], faults["made_twice"]) == ([130, 0], 0)
    assert f"| {faults['bundles']} of {faults['models']}, {faults['made_twice']} made twice |" in PAGE
    assert f"| {faults['made'][0]} and {faults['made'][1]} |" in PAGE
    assert f"| {faults['attempts']} |" in PAGE
    assert f"| {one['bundles_per_minute']} and {two['bundles_per_minute']} |" in PAGE
    assert f"| {one['seconds_per_conversion']} s and {two['seconds_per_conversion']} s |" in PAGE


def test_the_figures_of_two_workers_on_a_host_with_more_cores() -> None:
    found = measured("h100_host_many.json")
    one, two = found["workers 1"], found["workers 2"]
    text = " ".join(PAGE.split())
    ratio = two["bundles_per_minute"] / one["bundles_per_minute"]
    pair = f"{one['bundles_per_minute']} bundles per minute and two made {two['bundles_per_minute']}"
    assert f"one worker made {pair}, {ratio:.2f} times as many" in text
    assert f"busy for {busy(two, 2):.0%}".replace("%", " %") in text
    assert f"took {two['seconds_per_conversion']} s instead of {one['seconds_per_conversion']} s" in text


def test_every_field_of_a_row_is_explained() -> None:
    table = PAGE.partition("| key | value |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    assert named == {field.name for field in dataclasses.fields(Row)}

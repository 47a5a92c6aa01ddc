"""docs/serving.md: its figures are those of the result file, and its table of statuses has all of them."""

from __future__ import annotations

import json
import re

from support import ROOT

from fuseconv.serving import refusals
from fuseconv.serving.metrics import Metrics

PAGE = (ROOT / "docs" / "serving.md").read_text()


def test_the_figures() -> None:
    rows = json.loads((ROOT / "bench" / "results" / "cpu_serve.json").read_text())["rows"]
    assert not any(row["wrong"] for row in rows)
    found = {row["measure"]: row for row in rows if row["server"] == "local"}
    load, saturated = found["load"], found["saturated"]
    assert f"{load['requests']:,}: {load['lost']} lost, {load['wrong']} wrong" in PAGE
    assert f"{load['p50_ms']} ms, {load['p99_ms']} ms" in PAGE
    assert f"| {load['rows_per_batch']} |" in PAGE
    assert f"| {saturated['of_bare']} (median of {len(saturated['rounds'])} rounds) |" in PAGE
    assert f"| {saturated['of_bare_by_cpu']} |" in PAGE
    assert (load["lost"], load["wrong"], saturated["lost"], saturated["wrong"]) == (0, 0, 0, 0)


def test_every_status_is_explained() -> None:
    kinds = [one for one in vars(refusals).values() if isinstance(one, type) and hasattr(one, "status")]
    listed = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)}
    assert {kind.status for kind in kinds} | {500} == listed


def test_every_metric_is_explained() -> None:
    named = set(re.findall(r"^# TYPE (fuseconv_\w+) (?!gauge\n.*_created)", Metrics().text().decode(), re.MULTILINE))
    assert {name for name in named if not name.endswith("_created")} == set(re.findall(r"`(fuseconv_\w+)\{", PAGE))

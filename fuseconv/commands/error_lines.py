"""Explains large errors of targets that pass: an absolute error is large where the values are large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseconv.parity.report import Report

LARGE = 1.0
"""The absolute error from which a reader may doubt that the target is right, although it is within the tolerance."""


def error_lines(report: Report) -> Iterator[str]:
    """Yields a line for each case and output in which passing targets have their largest error, if it is `LARGE`.

    The line says how much the original model itself differs there from float64.
    """
    from fuseconv.parity.report import telling

    found: dict[tuple[str, str, float], list[str]] = {}
    for target in dict.fromkeys(row.target for row in report.rows):
        rows = [row for row in report.rows if row.target == target]
        if not all(row.row.ok for row in rows):
            continue
        worst = max(telling(rows), key=lambda row: row.row.max_abs)
        if worst.row.max_abs >= LARGE:
            found.setdefault((worst.case, worst.output, worst.row.rmse_original_vs_fp64), []).append(target)
    for (case, output, own), targets in found.items():
        yield (
            f"max error of {', '.join(targets)}: in the case {case}, output {output}, where the original model itself "
            f"differs from float64 by {own:.1e} (root mean square)"
        )

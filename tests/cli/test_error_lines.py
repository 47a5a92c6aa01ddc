"""Below the table of a conversion, large errors of targets that pass are explained, and no others."""

from __future__ import annotations

import math

import pytest

from fuseconv.commands.error_lines import error_lines
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.cases import Kind
from fuseconv.parity.report import OutputRow, Report


def row(
    target: str, case: str, error: float, *, own: float = 0.0, ok: bool = True, kind: Kind = "ordinary"
) -> OutputRow:
    return OutputRow(target, case, "y", Row(ok, error, error, own, own), kind)


def line(targets: str, case: str, own: str) -> str:
    where = f"in the case {case}, output y, where the original model itself differs from float64 by {own}"
    return f"max error of {targets}: {where} (root mean square)"


TABLE: dict[str, tuple[list[OutputRow], list[str]]] = {
    "small errors": ([row("export", "given", 1e-6), row("export", "zeros and large", 0.5)], []),
    "a large error of large values": (
        [row("export", "given", 1e-6), row("export", "zeros and large", 1e30, own=2e30)],
        [line("export", "zeros and large", "2.0e+30")],
    ),
    "the same of two targets": (
        [row("export", "random", 4.0, own=2.5), row("onnx", "given", 1e-6), row("onnx", "random", 5.0, own=2.5)],
        [line("export, onnx", "random", "2.5e+00")],
    ),
    "two targets in different cases": (
        [row("export", "random", 4.0, own=2.5), row("onnx", "given", 5.0, own=3.0)],
        [line("export", "random", "2.5e+00"), line("onnx", "given", "3.0e+00")],
    ),
    "special values, which the table leaves out": (
        [row("export", "given", 1e-6), row("export", "extremes", 1e31, kind="special")],
        [],
    ),
    "a target that fails": ([row("export", "given", 7.0, ok=False)], []),
    "nothing to compare": ([row("export", "given", math.nan, ok=False)], []),
}


@pytest.mark.parametrize("name", TABLE)
def test_large_errors_are_explained(name: str) -> None:
    rows, lines = TABLE[name]
    assert list(error_lines(Report(tuple(rows)))) == lines

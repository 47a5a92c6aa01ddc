"""Defines the report of a verification. The report has one row per target, case and output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuseconv.errors import ParityError
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.cases import Kind


@dataclass(frozen=True)
class OutputRow:
    """The comparison of one output of one target in one case.

    Attributes:
        target: the name of the target that was run.
        case: the name of the case whose inputs were used.
        output: the name of the compared output.
        row: the measured errors, and whether they are within the tolerance.
        kind: whether the input values of the case are `ordinary` or `special`.
        limit: whether the bundle's manifest lists the output in this case as a limitation of the target's runtime.
    """

    target: str
    case: str
    output: str
    row: Row
    kind: Kind = "ordinary"
    limit: bool = False

    @property
    def ok(self) -> bool:
        """Whether the output is within the tolerance, or the manifest lists it as a limitation."""
        return self.row.ok or self.limit

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON-serializable values."""
        named = {"target": self.target, "case": self.case, "kind": self.kind, "output": self.output}
        return {**named, **self.row.to_json(), **({"limit": True} if self.limit else {})}


@dataclass(frozen=True)
class Report:
    """All rows of a verification.

    Attributes:
        rows: one row per target, case and output.
        untried: maps the name of each case that was not run to the reason.
        uncompared: the names of the outputs without a finite element in any ordinary case, also in float64. Of these,
            only the places of NaN and infinities are compared.
    """

    rows: tuple[OutputRow, ...]
    untried: Mapping[str, str] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every row passes. False if there are no rows."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def error(self, where: str) -> ParityError | None:
        """Returns an error with the number of failing rows and the first failure, or None if every row passes.

        A report without rows is an error too, because no target was run.
        """
        if self.ok:
            return None
        failing = [row for row in self.rows if not row.ok]
        said = "no target was run"
        if failing:
            first = failing[0]
            said = (
                f"{len(failing)} of {len(self.rows)} rows failed; first: target {first.target}, case {first.case}, "
                f"output {first.output}: {first.row.reason}"
            )
        return ParityError(said, where=where, fix="convert the model again on this machine, or leave the target out")

    def counts(self) -> dict[str, int]:
        """Returns the number of targets, of cases, and of rows."""
        return {
            "targets": len({row.target for row in self.rows}),
            "cases": len({row.case for row in self.rows}),
            "rows": len(self.rows),
        }

    def by_target(self) -> tuple[OutputRow, ...]:
        """Returns one row per target, with the largest errors and with the numbers of cases and outputs."""
        return tuple(
            _all_of([row for row in self.rows if row.target == target])
            for target in dict.fromkeys(row.target for row in self.rows)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON-serializable values, with the largest errors of each target."""
        targets = dict.fromkeys(row.target for row in self.rows)
        return {
            "ok": self.ok,
            "run": self.counts(),
            "targets": {target: worst([row for row in self.rows if row.target == target]) for target in targets},
            "rows": [row.to_json() for row in self.rows],
            "untried": dict(self.untried),
            **({"uncompared": list(self.uncompared)} if self.uncompared else {}),
        }


def _all_of(rows: Sequence[OutputRow]) -> OutputRow:
    """Returns one row for all rows of a target, with their largest errors and the reason of the first failing row."""
    cases, outputs = len({row.case for row in rows}), len({row.output for row in rows})
    first = next((row for row in rows if not row.ok), None) or next((row for row in rows if not row.row.ok), rows[0])
    return replace(
        first,
        case=f"{cases} cases" if cases > 1 else first.case,
        output=f"{outputs} outputs" if outputs > 1 else first.output,
        row=Row(ok=first.row.ok, **_largest(rows), reason=first.row.reason),
    )


def _largest(rows: Sequence[OutputRow]) -> dict[str, float]:
    return {name: max((getattr(row.row, name) for row in telling(rows)), key=_nan_is_largest) for name in _FIGURES}


def worst(rows: Sequence[OutputRow]) -> dict[str, Any]:
    """Returns JSON-serializable values: whether all rows pass, the largest errors, and the first failing reason."""
    reason = next((row.row.reason for row in rows if not row.ok), "")
    return Row(ok=all(row.ok for row in rows), **_largest(rows), reason=reason).to_json()


def telling(rows: Sequence[OutputRow]) -> Sequence[OutputRow]:
    """Returns the rows of ordinary cases, which describe a target's accuracy. Returns all rows if no case is ordinary.

    At the limits of f32, a single rounding error is 1e31, so special cases would dominate the largest error.
    """
    return [row for row in rows if row.kind == "ordinary"] or rows


_FIGURES = ("max_abs", "max_rel", "rmse_vs_fp64", "rmse_original_vs_fp64")


def _nan_is_largest(figure: float) -> float:
    return math.inf if math.isnan(figure) else figure

"""What a verification found: one row for each target, case and output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseconv.errors import ParityError
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.cases import Kind


@dataclass(frozen=True)
class OutputRow:
    """One output of one target in one case of a kind.

    Attributes:
        limit: whether the bundle's manifest says that the target's runtime computes this output its own way.
    """

    target: str
    case: str
    output: str
    row: Row
    kind: Kind = "ordinary"
    limit: bool = False

    @property
    def ok(self) -> bool:
        """Whether the output is right, or differs by a limit that the manifest names."""
        return self.row.ok or self.limit

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        named = {"target": self.target, "case": self.case, "kind": self.kind, "output": self.output}
        return {**named, **self.row.to_json(), **({"limit": True} if self.limit else {})}


@dataclass(frozen=True)
class Report:
    """All rows of a verification.

    Attributes:
        rows: one per target, case and output.
        untried: the cases that were not run, and why.
    """

    rows: tuple[OutputRow, ...]
    untried: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every row passes; of no rows nothing is proved."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def error(self, where: str) -> ParityError | None:
        """Returns the error for the rows that fail: the first one, and how many there are."""
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
        """Returns how much was run: targets, cases, and outputs compared."""
        return {
            "targets": len({row.target for row in self.rows}),
            "cases": len({row.case for row in self.rows}),
            "rows": len(self.rows),
        }

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values: `ok`, what was run, the worst of each target, the rows, and the cases not run."""
        targets = dict.fromkeys(row.target for row in self.rows)
        return {
            "ok": self.ok,
            "run": self.counts(),
            "targets": {target: worst([row for row in self.rows if row.target == target]) for target in targets},
            "rows": [row.to_json() for row in self.rows],
            "untried": dict(self.untried),
        }


def worst(rows: Sequence[OutputRow]) -> dict[str, Any]:
    """Returns whether all rows pass, the largest of each figure, and the first reason, as plain JSON values."""
    figures = {name: max((getattr(row.row, name) for row in telling(rows)), key=_nan_is_largest) for name in _FIGURES}
    reason = next((row.row.reason for row in rows if not row.ok), "")
    return Row(ok=all(row.ok for row in rows), **figures, reason=reason).to_json()


def telling(rows: Sequence[OutputRow]) -> Sequence[OutputRow]:
    """Returns the rows whose figures sum up how exact a target is: of ordinary cases, where any was run.

    At the ends of a dtype's range an error of one rounding is 1e31 in f32; each of those rows has its own figures.
    """
    return [row for row in rows if row.kind == "ordinary"] or rows


_FIGURES = ("max_abs", "max_rel", "rmse_vs_fp64", "rmse_original_vs_fp64")


def _nan_is_largest(figure: float) -> float:
    return math.inf if math.isnan(figure) else figure

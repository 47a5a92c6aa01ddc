"""Defines the result of a search for a numerical difference: its cause, its place, and a repro script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fuseconv.blaming.borders import Border
from fuseconv.numerics.tolerance import Row

Cause = Literal["model", "rule", "op", "weights", "artifact", "target", "upstream", "unknown"]

MEANINGS: Mapping[Cause, str] = {
    "model": "upstream: the model itself overflows in its dtype",
    "rule": "the rule replaces ops by ops that compute something else",
    "op": "the kernel of an op differs from its reference in PyTorch",
    "weights": "a file of the bundle contains other weights than the model",
    "artifact": "the target's file differs from what the target writes",
    "target": "what fuseconv writes for the target computes something else",
    "upstream": "upstream: the unfused export differs too",
    "unknown": "the cause was not found",
}
"""The explanation of each cause that is shown to users."""


Rows = tuple[tuple[Border, Row], ...]
"""Borders with the error at each border, in the order of the program."""


@dataclass(frozen=True)
class Verdict:
    """The cause of a difference.

    Attributes:
        cause: the component that introduces the difference, such as `rule`, `op` or `weights`.
        targets: the targets that differ because of the cause. Empty if the program differs before a target is written.
        case: the name of the case that shows the difference.
        border: the first value whose error exceeds the tolerance. None if no such value was found.
        row: the error at the border, with the ops before the border run alone where that was possible. If there is no
            border, the error of an output. None if unknown.
        detail: further findings in words. May be empty.
        step: the index, in the plan, of the rewrite that causes the difference. None if no rewrite is the cause.
        repro: the path of the repro script, which exits with status 1 while the difference exists. None if there is no
            script.
        unshown: the reason why there is no script. Empty if there is a script.
        rows: the errors of the differing stage in this case, at the ends of modules and matches.
        limit: whether the difference occurs only for special values, and also without fusion. A conversion then records
            the difference as a limit of the target's runtime.
    """

    cause: Cause
    targets: tuple[str, ...]
    case: str
    border: Border | None = None
    row: Row | None = None
    detail: str = ""
    step: int | None = None
    repro: Path | None = None
    unshown: str = ""
    rows: Rows = ()
    limit: bool = False

    @property
    def meaning(self) -> str:
        """The explanation of the cause."""
        return MEANINGS[self.cause]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        where = "" if self.border is None else f" at {self.border}"
        targets = f" in {', '.join(self.targets)}" if self.targets else ""
        figures = f": {self.row.reason}" if self.row is not None and self.row.reason else ""
        return f"{self.meaning}{targets}{where}{figures}"

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as JSON-serializable values."""
        border = self.border
        return {
            "cause": self.cause,
            "meaning": self.meaning,
            "targets": list(self.targets),
            "case": self.case,
            "layer": None if border is None else border.layer,
            "op": None if border is None else border.op,
            "node": None if border is None else border.node,
            "rule": border.rule or None if border is not None else None,
            "match": [] if border is None else list(border.match),
            "step": self.step,
            "line": None if border is None else border.line,
            "error": None if self.row is None else self.row.to_json(),
            "detail": self.detail,
            "repro": None if self.repro is None else str(self.repro),
            "unshown": self.unshown,
            "limit": self.limit,
            "borders": [
                {"node": one.node, "layer": one.layer, "op": one.op, "rule": one.rule or None, **row.to_json()}
                for one, row in self.rows
            ],
        }


@dataclass(frozen=True)
class Growth:
    """The errors of the original and of the fused program at a border, in one case.

    Attributes:
        border: the value at which the errors were measured.
        rms_fp64: the root mean square of the finite elements of the float64 reference.
        original: the error of the original in its own dtype.
        fused: the error of the fused program in PyTorch.
    """

    border: Border
    rms_fp64: float
    original: Row
    fused: Row

    def to_json(self) -> dict[str, Any]:
        """Returns the errors as JSON-serializable values."""
        return {
            "node": self.border.node,
            "layer": self.border.layer,
            "op": self.border.op,
            "rule": self.border.rule or None,
            "rms_fp64": self.rms_fp64,
            "original": self.original.to_json()["rmse_vs_fp64"],
            "fused": self.fused.to_json()["rmse_vs_fp64"],
        }


@dataclass(frozen=True)
class Blame:
    """The result of a search for the causes of differences.

    Attributes:
        verdicts: one verdict per cause. Empty if nothing differs.
        compared: the targets that were compared.
        unable: the reason why a target could not be compared, by the name of the target.
        case: the name of the case in which `growth` was measured.
        growth: the errors at the ends of modules and matches, in order.
    """

    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]
    unable: Mapping[str, str]
    case: str
    growth: tuple[Growth, ...]

    def without_repros(self, why: str) -> Blame:
        """Returns the result without scripts. `why` becomes the `unshown` of each verdict whose `unshown` is empty."""
        verdicts = (replace(one, repro=None, unshown=one.unshown or why) for one in self.verdicts)
        return replace(self, verdicts=tuple(verdicts))

    @property
    def faults(self) -> tuple[Verdict, ...]:
        """The verdicts that are not limits of a target's runtime."""
        return tuple(one for one in self.verdicts if not one.limit)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON-serializable values."""
        return {
            "verdicts": [one.to_json() for one in self.verdicts],
            "compared": list(self.compared),
            "unable": dict(self.unable),
            "case": self.case,
            "borders": [one.to_json() for one in self.growth],
        }

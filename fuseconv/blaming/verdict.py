"""What is to blame for a numerical difference: the cause, the place, and the file that shows it."""

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
    "rule": "the rule replaces ops by others that compute something else",
    "op": "the kernel of an op differs from its reference in PyTorch",
    "weights": "a file of the bundle has other weights than the model",
    "artifact": "the file of the target is not what the target writes",
    "target": "what fuseconv writes for the target computes something else",
    "upstream": "upstream: the unfused export differs too",
    "unknown": "the place was not found",
}
"""Each cause in words."""


Rows = tuple[tuple[Border, Row], ...]
"""The errors at borders, in order."""


@dataclass(frozen=True)
class Verdict:
    """The cause of a difference.

    Attributes:
        cause: what is to blame.
        targets: the targets that differ because of it. Empty if the program differs before a target is written.
        case: the name of the case that shows it.
        border: the first value that differs by more than fp64 and the tolerance table explain. None if not found.
        row: the error there, with the values before it as the original has them.
        detail: what was found, in words. May be empty.
        step: the position in the plan of the step to blame. None if it is not a step.
        repro: the script that shows the difference, and exits with 1 while it exists.
        unshown: why there is no script.
        rows: the errors of what differs at the ends of modules and matches, in the case.
        limit: whether only special values differ, and without fusions too. A conversion records it as a limit.
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
        """The cause in words."""
        return MEANINGS[self.cause]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        where = "" if self.border is None else f" at {self.border}"
        targets = f" in {', '.join(self.targets)}" if self.targets else ""
        figures = f": {self.row.reason}" if self.row is not None and self.row.reason else ""
        return f"{self.meaning}{targets}{where}{figures}"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
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
    """The error at a border, in one case.

    Attributes:
        border: the border.
        rms_fp64: the root mean square of the fp64 reference.
        original: the root-mean-square error of the original in its own dtype.
        fused: that of the fused program in PyTorch.
    """

    border: Border
    rms_fp64: float
    original: Row
    fused: Row

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
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
    """The result.

    Attributes:
        verdicts: one per cause. Empty if nothing differs.
        compared: the targets that were compared.
        unable: the targets that could not be compared, with the reasons.
        case: the case of `growth`.
        growth: the error at each border, in order.
    """

    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]
    unable: Mapping[str, str]
    case: str
    growth: tuple[Growth, ...]

    def without_repros(self, why: str) -> Blame:
        """Returns the verdicts without their scripts, with the reason."""
        verdicts = (replace(one, repro=None, unshown=one.unshown or why) for one in self.verdicts)
        return replace(self, verdicts=tuple(verdicts))

    @property
    def faults(self) -> tuple[Verdict, ...]:
        """The verdicts that are not limits of a runtime."""
        return tuple(one for one in self.verdicts if not one.limit)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "verdicts": [one.to_json() for one in self.verdicts],
            "compared": list(self.compared),
            "unable": dict(self.unable),
            "case": self.case,
            "borders": [one.to_json() for one in self.growth],
        }

"""Defines the result of a conversion: the written targets, the targets left out, and whether that is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuseconv.blaming.verdict import Blame
from fuseconv.bundle.manifest import LeftOut, Limit
from fuseconv.bundle.methods import weights_folder
from fuseconv.bundle.tuned import Tuned
from fuseconv.errors import FuseconvError, ParityError, UnsupportedError
from fuseconv.matching.steps import Forms, Plan
from fuseconv.measure.peers import Versus
from fuseconv.parity.report import Report
from fuseconv.pipeline.assembly import Written
from fuseconv.weights.table import STORE


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        bundle: the folder of the bundle.
        plan: the plan that was executed. It lists the rewrites and the misses (the places where a rule does not apply).
        written: one artifact per written target.
        left_out: the requested targets that are not in the bundle, with the reasons.
        limits: the outputs that a target's runtime computes differently for NaN, infinities or the limits of a dtype.
        report: the parity of every target, case and output.
        by_name: whether the user requested the targets by name.
        tuned: the times of the targets. None if they were not measured.
        peers: the timing of the fastest target against each requested peer. Empty if no peers were requested.
        blame: the causes of parity failures. None if they were not searched for.
        varying: the reason why a target's bytes may differ after another conversion, by the name of the target. None if
            a reproducible conversion was not requested.
        forms: maps the text of each kind of linear algebra region to the form that was chosen or read from a lock. A
            form is an equivalent list of ops.
    """

    bundle: Path
    plan: Plan
    written: tuple[Written, ...]
    left_out: tuple[LeftOut, ...]
    limits: tuple[Limit, ...]
    report: Report
    by_name: bool
    tuned: Tuned | None = None
    peers: tuple[Versus, ...] = ()
    forms: Forms = field(default_factory=dict)
    blame: Blame | None = None
    varying: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON-serializable values."""
        parity = self.report.to_json()["targets"]
        done = {
            one.target: {"path": one.path, "seconds": one.seconds, "size": one.size, "parity": parity[one.target]}
            for one in self.written
        }
        return {
            "bundle": str(self.bundle),
            **plan_to_json(self.plan, [one.target for one in self.written]),
            "targets": {
                **done,
                **{one.target: {"path": None, "cause": one.cause, "reason": one.reason} for one in self.left_out},
            },
            "weights": self.weights,
            "limits": [limit.model_dump() for limit in self.limits],
            "untried": dict(self.report.untried),
            "tuned": None if self.tuned is None else self.tuned.model_dump(),
            "peers": [one.to_json() for one in self.peers],
            **({} if self.varying is None else {"varying": dict(self.varying)}),
            **({} if self.blame is None else {"blame": self.blame.to_json()}),
        }

    @property
    def weights(self) -> int:
        """The size of the weight file that the targets share, in bytes."""
        return (weights_folder(self.bundle) / STORE).stat().st_size

    def error(self, *, strict: bool = False) -> FuseconvError | None:
        """Returns an error if the bundle lacks a target that it must contain, otherwise None.

        A bundle must contain each target that was requested by name, and each target that failed because of the plan.
        With `strict`, it must contain all requested targets and all matches.
        """
        rejected = rejection(self.plan, str(self.bundle)) if strict else None
        return rejected or self._incomplete(strict=strict)

    def _incomplete(self, *, strict: bool) -> FuseconvError | None:
        wrong = [one for one in self.left_out if one.cause == "plan" or (strict and one.cause == "parity")]
        left = wrong or (self.left_out if strict or self.by_name else ())
        if not left:
            return None
        kept = " ".join(f"--target {one.target}" for one in self.written)
        what = f"targets were left out: {'; '.join(f'{one.target}: {one.reason}' for one in left)}"
        where, fix = str(self.bundle), f"the other targets passed; to convert only these, use {kept}"
        if wrong:
            return ParityError(what, where=where, fix=fix, blame=self.blame)
        return UnsupportedError(what, where=where, fix=fix)


def rejection(plan: Plan, where: str) -> ParityError | None:
    """Returns an error if matches stay unfused because a rule failed its numerical test, otherwise None."""
    if not plan.rejected:
        return None
    first, rules = plan.rejected[0], sorted({miss.rule for miss in plan.rejected})
    return ParityError(
        f"matches rejected and left unfused: {len(plan.rejected)}, of {', '.join(rules)}; first: rule {first.rule} at "
        f"{first.node}: {first.reason}",
        where=where,
        fix=f"correct the rule and test it with `fuseconv rules check`, or leave it out with --no-rule {first.rule}",
    )


def plan_to_json(plan: Plan, targets: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the fusions and the near misses of a plan as JSON-serializable values.

    A near miss is a subgraph that a rule almost matched. The status of a fusion is `left alone` if none of `targets`
    applies it, otherwise `applied`. `choices` contains the measured times by target.
    """
    return {
        "fusions": [
            {
                "rule": step.rule,
                "op": ", ".join(line.partition("=")[2].partition("(")[0].strip() for line in step.replace),
                "nodes": list(step.nodes),
                "status": "left alone" if targets and not any(map(step.applies, targets)) else "applied",
                "choices": {target: asdict(choice) for target, choice in step.choices.items()},
                "reason": "; ".join(f"{target}: {choice}" for target, choice in step.left_alone().items()),
            }
            for step in plan.applied
        ],
        "near_misses": [
            {"rule": miss.rule, "node": miss.node, "reason": miss.reason, "rejected": miss.rejected}
            for miss in plan.misses
        ],
    }

"""What is wrong with a bundle that was written or judged, as the error that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseconv.errors import FuseconvError, ParityError, UnsupportedError

if TYPE_CHECKING:
    from fuseconv.matching.steps import Plan
    from fuseconv.parity import Report
    from fuseconv.pipeline import Conversion


def mismatch(report: Report, where: str) -> ParityError:
    """Returns the error for a report with a failing row: the first one, and how many there are."""
    failing = [row for row in report.rows if not row.ok]
    first = failing[0]
    return ParityError(
        f"{len(failing)} of {len(report.rows)} rows fail; first: target {first.target}, case {first.case}, "
        f"output {first.output}: {first.row.reason}",
        where=where,
        fix="find the rule with `fuseconv explain`, leave it out, or keep the bundle, marked, with --allow-mismatch",
    )


def incomplete(conversion: Conversion) -> FuseconvError | None:
    """Returns the error that says what was left out of a bundle that stands: sites of wrong rules, or targets."""
    return rejection(conversion.plan, str(conversion.bundle)) or _unsupported(conversion)


def rejection(plan: Plan, where: str) -> ParityError | None:
    """Returns the error for sites that were left as they were because a rule computes something else there, if any."""
    if not plan.rejected:
        return None
    first, rules = plan.rejected[0], sorted({miss.rule for miss in plan.rejected})
    return ParityError(
        f"{len(plan.rejected)} sites were left as they were, of {', '.join(rules)}; first: rule {first.rule} at "
        f"{first.node}: {first.reason}",
        where=where,
        fix=f"correct the rule, `fuseconv rules check` tries it alone, or leave it out with --no-rule {first.rule}",
    )


def _unsupported(conversion: Conversion) -> FuseconvError | None:
    """Returns the error that says which targets were left out, if any; the others stand."""
    if not conversion.skipped:
        return None
    reasons = "; ".join(f"{name}: {reason}" for name, reason in conversion.skipped.items())
    names = " ".join(f"--target {one.target}" for one in conversion.written)
    return UnsupportedError(
        f"not every target was written: {reasons}",
        where=str(conversion.bundle),
        fix=f"the others are in the bundle; ask for those alone with {names}",
    )

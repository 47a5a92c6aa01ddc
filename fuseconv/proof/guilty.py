"""Finds the step of a plan at which a check of the whole program fails, and excludes the match of this step.

Steps depend on earlier steps, so the step is found by bisection over the number of executed steps: every prefix of a
plan is a valid plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuseconv.matching.graph import source_line
from fuseconv.matching.plan import MatchKey
from fuseconv.matching.steps import Miss, Plan, Step
from fuseconv.program.captured import Program


def bisect(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """Bisects to the smallest number that fails. `low` must pass and `high` must fail."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def rejected(
    program: Program, plan: Plan, guilty: Step, why: str, before: Mapping[MatchKey, Miss]
) -> dict[MatchKey, Miss]:
    """Returns the matches to exclude after a step failed, with the reasons.

    These are the failing step's match, and all matches of the same rule if another match of this rule failed before.

    Args:
        program: the captured program.
        plan: the plan that contains the failing step.
        guilty: the failing step.
        why: the failure with this step, in words.
        before: maps each match that is already excluded to the reason.
    """
    again = any(rule == guilty.rule for rule, _ in before)
    lines = {node.name: source_line(node) for node in program.exported.graph.nodes}

    def miss(step: Step) -> Miss:
        reason = why if step is guilty else f"the rule was left out because it failed at {guilty.nodes[-1]}: {why}"
        where = lines.get(step.nodes[-1].partition("/")[0], "")
        return Miss(
            step.rule, step.nodes[-1], reason, "the result of the original", reason, where, refused=True, rejected=True
        )

    steps = [step for step in plan.applied if step is guilty or (again and step.rule == guilty.rule)]
    return {(step.rule, step.nodes): miss(step) for step in steps}

"""Handles unexpected errors at a match: the match is excluded, and the plan is computed again without this match."""

from __future__ import annotations

from fuseconv.matching.steps import Miss


class StepError(Exception):
    """A step failed with an unexpected error and may have left its graph partially rewritten.

    Attributes:
        key: the name of the rule and the matched nodes, which identify the match to exclude.
        miss: the miss that the plan reports.
    """

    def __init__(self, rule: str, nodes: tuple[str, ...], where: str, error: Exception) -> None:
        super().__init__(str(error))
        self.key = (rule, nodes)
        self.miss = miss(rule, nodes, where, error)


def described(error: Exception) -> str:
    """Returns a one-line description of an unexpected error."""
    return f"a bug in fuseconv, {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def miss(rule: str, nodes: tuple[str, ...], where: str, error: Exception) -> Miss:
    """Creates the miss that reports a match excluded because of an unexpected error."""
    found = described(error)
    reason = f"the match is skipped: {found}"
    return Miss(rule, nodes[-1], reason, "a step without errors", found, where, refused=True, rejected=True)

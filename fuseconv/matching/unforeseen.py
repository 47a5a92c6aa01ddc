"""Errors at a site that nothing foresaw: the site is left alone, by name, and the plan is made anew without it."""

from __future__ import annotations

from fuseconv.matching.steps import Miss


class StepError(Exception):
    """A step ended in an error that nothing foresaw, and may have left its graph half rewritten.

    Attributes:
        key: the rule and the nodes of its site.
        miss: what the plan says of it.
    """

    def __init__(self, rule: str, nodes: tuple[str, ...], where: str, error: Exception) -> None:
        super().__init__(str(error))
        self.key = (rule, nodes)
        self.miss = miss(rule, nodes, where, error)


def described(error: Exception) -> str:
    """Returns an error in one line."""
    return f"a bug in fuseconv, {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def miss(rule: str, nodes: tuple[str, ...], where: str, error: Exception) -> Miss:
    """Returns what a plan says of a site that is left alone because of such an error."""
    found = described(error)
    reason = f"the match is skipped: {found}"
    return Miss(rule, nodes[-1], reason, "a step that can be executed", found, where, refused=True, rejected=True)

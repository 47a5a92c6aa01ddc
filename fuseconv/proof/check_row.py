"""The result of one check of a rule, and a summary of all checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["proved", "tried", "left alone", "not run", "wrong"]
"""The result of a check. `proved`: algebra proves the rule for all values. `tried`: the results are equal on all random
values. `left alone`: an example that must not match does not match. `not run`: nothing was checked. `wrong`: a
counterexample was found."""


@dataclass(frozen=True)
class CheckRow:
    """One check of one rule.

    Attributes:
        rule: the name of the checked rule.
        check: `hit N` or `miss N` for the Nth example, counted from 0; `variants` for the variants of all examples; or
            `algebra` for all examples.
        verdict: the result.
        detail: a description of the result. For a wrong rule, the counterexample.
        draws: the number of sets of random operands on which the rule was tested.
    """

    rule: str
    check: str
    verdict: Verdict
    detail: str
    draws: int = 0

    @property
    def ok(self) -> bool:
        """Whether the check found no error. It is true also if nothing was checked; see `verdict`."""
        return self.verdict != "wrong"


@dataclass(frozen=True)
class Summary:
    """Counts of rules, grouped by the result of their checks.

    Attributes:
        rules: the number of all rules.
        proved: the number of rules for which algebra proves every example.
        partly: the number of rules for which algebra proves some examples.
        tried: the number of rules that were only tested numerically.
        unchecked: the number of rules without examples.
        wrong: the number of wrong rules.
        draws: the total number of sets of random operands.
    """

    rules: int
    proved: int
    partly: int
    tried: int
    unchecked: int
    wrong: int
    draws: int


def summary(rows: Sequence[CheckRow]) -> Summary:
    """Returns the counts of rules, grouped by the result of their checks."""
    verdicts: dict[str, set[str]] = {}
    for row in rows:
        found = verdicts.setdefault(row.rule, set())
        found.add("partly" if row.check == "algebra" and row.verdict == "tried" else row.verdict)
    order = ("wrong", "partly", "proved", "tried")
    first = [next((one for one in order if one in found), "unchecked") for found in verdicts.values()]
    counts = {one: first.count(one) for one in (*order, "unchecked")}
    return Summary(rules=len(verdicts), draws=sum(row.draws for row in rows), **counts)

"""What a check of a rule says, and what all of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["proved", "tried", "left alone", "not run", "wrong"]
"""What a check came to: proved by algebra, for all values; tried on drawn values, and the same on each; an example that
was to be left alone, and was; nothing was checked; a counter-example, or an example that the rule does not treat so."""


@dataclass(frozen=True)
class CheckRow:
    """One check of one rule.

    Attributes:
        rule: the rule.
        check: `hit N` or `miss N`, the Nth example, from 0; `variants`, of all examples; `algebra`, of all.
        verdict: what it came to.
        detail: what happened; of a rule that is wrong, the counter-example.
        draws: on how many draws of operands the rule was tried.
    """

    rule: str
    check: str
    verdict: Verdict
    detail: str
    draws: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was found. It is so, too, where nothing was checked: `verdict` tells the two apart."""
        return self.verdict != "wrong"


@dataclass(frozen=True)
class Summary:
    """How many rules are proved, and how many are tried alone.

    Attributes:
        rules: how many there are.
        proved: those of which algebra proves every example.
        partly: those of which it proves some.
        tried: those that rest on numbers alone.
        unchecked: those that no example shows.
        wrong: those that are wrong.
        draws: on how many draws of operands they were tried together.
    """

    rules: int
    proved: int
    partly: int
    tried: int
    unchecked: int
    wrong: int
    draws: int


def summary(rows: Sequence[CheckRow]) -> Summary:
    """Counts rules by what is known of them."""
    verdicts: dict[str, set[str]] = {}
    for row in rows:
        found = verdicts.setdefault(row.rule, set())
        found.add("partly" if row.check == "algebra" and row.verdict == "tried" else row.verdict)
    order = ("wrong", "partly", "proved", "tried")
    first = [next((one for one in order if one in found), "unchecked") for found in verdicts.values()]
    counts = {one: first.count(one) for one in (*order, "unchecked")}
    return Summary(rules=len(verdicts), draws=sum(row.draws for row in rows), **counts)

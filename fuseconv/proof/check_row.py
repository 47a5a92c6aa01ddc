"""What a check of a rule says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckRow:
    """One check of one rule.

    Attributes:
        rule: the rule.
        check: `hit N` or `miss N`, the Nth example, from 0; `variants`, of the first example to hit; `algebra`, of all.
        ok: whether it passed.
        detail: what happened; of a rule that is wrong, the counter-example.
    """

    rule: str
    check: str
    ok: bool
    detail: str

"""The names that `--allow` accepts: those that rules declare. This module does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fuseconv.errors import UsageError
from fuseconv.matching.steps import NON_FINITE, SEARCH
from fuseconv.rulebook.listed import Listed
from fuseconv.rulebook.rule import Rule


def check_allowed(allow: Collection[str], known: Sequence[Rule | Listed]) -> None:
    """Checks that each name is declared in a rule's `allow` field. Search rules declare `non-finite`.

    Raises:
        UsageError: no rule declares one of the names.
    """
    searches = {NON_FINITE} if any(rule.stage == SEARCH for rule in known) else set[str]()
    names = sorted(searches.union(rule.allow for rule in known if rule.allow is not None))
    for name in allow:
        if name not in names:
            fix = f"use one of {', '.join(names)}" if names else "leave --allow out"
            raise UsageError(f"no rule declares {name} in `allow`", where=f"--allow {name}", fix=fix)

"""The rules of a run: those that come with fuseconv or a user's own, less those to leave out."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path

from fuseconv.errors import RuleError
from fuseconv.rulebook import rule_file
from fuseconv.rulebook.rule import Rule


def load_rules(path: str | Path | None = None, without: Collection[str] = ()) -> tuple[Rule, ...]:
    """Reads a rule file or folder; without one, the default set that comes with fuseconv.

    Args:
        path: the file or folder.
        without: names of rules to leave out.

    Raises:
        RuleError: a file is missing or not a rule file, or no rule has a name that is to be left out.
    """
    rules = _read(path)
    left_out = {named(name, rules).name for name in without}
    return tuple(rule for rule in rules if rule.name not in left_out)


def named(name: str, rules: Sequence[Rule]) -> Rule:
    """Returns the rule of that name.

    Raises:
        RuleError: there is none.
    """
    by_name = {rule.name: rule for rule in rules}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        raise RuleError(
            f"there is no rule {name}",
            where="the rules read",
            fix=f"did you mean {near[0]}?" if near else "see `fuseconv rules list`",
        )
    return by_name[name]


def _read(path: str | Path | None) -> tuple[Rule, ...]:
    return rule_file.load_rules(rule_file.own_folder() / "default.json" if path is None else path)

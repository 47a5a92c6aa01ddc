"""Loads the rules for a conversion: the default rules or the user's rules, without the disabled rules."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from fuseconv.errors import RuleError
from fuseconv.rulebook import rule_file
from fuseconv.rulebook.rule import Rule


def load_rules(path: str | Path | None = None, without: Collection[str] = ()) -> tuple[Rule, ...]:
    """Reads the rules of a file or folder, or the rules that come with fuseconv.

    Args:
        path: the file or folder. Default: the rules that come with fuseconv.
        without: the names of the rules to leave out.

    Raises:
        RuleError: a file is missing or invalid, or a name in `without` matches no rule.
    """
    rules = _read(path)
    left_out = {named(name, rules).name for name in without}
    return tuple(rule for rule in rules if rule.name not in left_out)


def named(name: str, rules: Sequence[Rule]) -> Rule:
    """Returns the rule with the given name.

    Raises:
        RuleError: no rule has this name.
    """
    by_name = {rule.name: rule for rule in rules}
    check_known(name, by_name)
    return by_name[name]


def check_known(name: str, names: Collection[str]) -> None:
    """Checks that a rule of this name is among those read.

    Raises:
        RuleError: no rule has this name.
    """
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RuleError(
            f"there is no rule {name}",
            where="the rules read",
            fix=f"did you mean {near[0]}?" if near else "see `fuseconv rules list`",
        )


def _read(path: str | Path | None) -> tuple[Rule, ...]:
    return rule_file.load_rules(path) if path is not None else _own(rule_file.own_folder() / "default.json")


@cache
def _own(path: Path) -> tuple[Rule, ...]:
    """Reads the rules that come with fuseconv once per process. Reading takes half the conversion of a small model."""
    return rule_file.load_rules(path)

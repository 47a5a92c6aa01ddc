"""The rules that come with fuseconv: where they lie, and how a user's path finds them."""

from __future__ import annotations

from pathlib import Path

import fuseconv
from fuseconv import rule_file
from fuseconv.rule import Rule


def load_rules(path: str | Path | None = None) -> tuple[Rule, ...]:
    """Reads a rule file or folder; without one, the default set that comes with fuseconv.

    A path that is not there is looked up among fuseconv's own: `rules/default.json` means the same from every folder.

    Raises:
        RuleError: a file is missing or not a rule file.
    """
    own = rules_folder()
    if path is None:
        return rule_file.load_rules(own / "default.json")
    path = Path(path)
    if not path.exists() and path.parts[:1] == ("rules",) and (own.parent / path).exists():
        path = own.parent / path
    return rule_file.load_rules(path)


def rules_folder() -> Path:
    """Returns the folder of the rules that come with fuseconv: inside the package, or beside it in a source tree."""
    package = Path(fuseconv.__file__).parent
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"

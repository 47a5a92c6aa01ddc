"""`fuseconv rules`: lists, shows, formats, checks, drafts and tests rule files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fuseconv.commands.completion import PATH, rule_names
from fuseconv.commands.options import json_option, rules_option, rules_trust_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.rules_draft import draft
from fuseconv.commands.rules_test import test
from fuseconv.commands.settings import Configured
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import ParityError, RuleError


@click.group()
def rules() -> None:
    """List, show, check, draft and test rule files."""


rules.add_command(draft)
rules.add_command(test)


@rules.command(cls=Configured, name="list")
@rules_option
@json_option
def list_rules(rules: Path | None) -> Outcome:
    """List every rule with its stage and description."""
    from fuseconv.commands import results
    from fuseconv.rulebook import own_rules

    found = own_rules.load_rules(rules)
    result = {"rules": [{"name": rule.name, "stage": rule.stage, "doc": rule.doc} for rule in found]}
    return Outcome(result, lambda console: results.print_rules(console, found))


@rules.command(cls=Configured, short_help="Show one rule as written in its file.")
@click.argument("name", shell_complete=rule_names)
@rules_option
@json_option
def show(name: str, rules: Path | None) -> Outcome:
    """Show one rule: its pattern, conditions and replacement."""
    from fuseconv.commands import results
    from fuseconv.rulebook import own_rules

    rule = own_rules.named(name, own_rules.load_rules(rules))
    result = rule.model_dump(mode="json", exclude_none=True)
    return Outcome(result, lambda console: results.print_rule(console, rule))


@rules.command(cls=Configured, name="format", short_help="Format rule files in the project's style.")
@click.argument("files", metavar="FILE...", type=PATH, nargs=-1, required=True)
@click.option("--check", "only_check", is_flag=True, help="Change no file, and exit with 1 if a file would change.")
@quiet_option
@json_option
def format_rules(files: tuple[Path, ...], only_check: bool) -> Outcome:
    """Format the rule FILEs in the project's style, with one op of a pattern per line and wrapped lists of examples."""
    from fuseconv.rulebook.json_text import read_json
    from fuseconv.rulebook.layout import laid_out

    changed = []
    for file in files:
        document = read_json(file, RuleError)
        if (text := laid_out(document.value)) != document.text:
            changed.append(str(file))
            if not only_check:
                file.write_text(text)
    error = None
    if only_check and changed:
        what = f"{len(changed)} of {len(files)} files are not formatted"
        error = ParityError(what, where=changed[0], fix="run `fuseconv rules format` on these files")
    said = "".join(f"{'would change' if only_check else 'changed'} {name}\n" for name in changed)
    return Outcome({"changed": changed}, lambda console: console.print(said, end="", highlight=False), error)


@rules.command(cls=Configured, short_help="Check rules on examples, without a model.")
@click.argument("rules", metavar="[FILE]", type=PATH, required=False)
@click.option(
    "--rule",
    "only",
    multiple=True,
    metavar="NAME",
    shell_complete=rule_names,
    help="Test only the examples of this rule. May be repeated. [default: all rules, also those of included files]",
)
@rules_trust_option
@quiet_option
@json_option
def check(rules: Path | None, only: tuple[str, ...], trust: tuple[str, ...]) -> Outcome:
    """Check the syntax, ops and rewrite cycles of a rule FILE, and test its examples numerically and by algebra."""
    from fuseconv.commands import results
    from fuseconv.proof.check_row import summary
    from fuseconv.proof.confined import check_rules

    rows = check_rules(rules, trust, only)
    failing = [row for row in rows if not row.ok]
    error = None
    if failing:
        what = f"{len(failing)} of {len(rows)} checks failed; first: rule {failing[0].rule}, {failing[0].check}"
        error = ParityError(what, where=str(rules or "the default rules"), fix="see the table above")
    result = {"checks": [{**asdict(row), "ok": row.ok} for row in rows], "summary": asdict(summary(rows))}
    return Outcome(result, lambda console: results.print_checks(console, rows), error)

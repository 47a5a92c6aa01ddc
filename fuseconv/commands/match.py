"""`fuseconv match`: writes the plan of a conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuseconv.bundle.whole_file import write_whole
from fuseconv.commands.completion import PATH
from fuseconv.commands.following import after_match
from fuseconv.commands.options import (
    check_rules,
    json_option,
    model_argument,
    model_options,
    reading,
    rules_options,
    writable,
)
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import FileError
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed


@click.command(cls=Configured)
@model_argument
@rules_options
@click.option(
    "-o", "--output", type=PATH, default=Path("plan.json"), show_default=True, metavar="FILE", callback=writable
)
@model_options
@quiet_option
@json_option
def match(model: Path, rules: Path | None, without: tuple[str, ...], output: Path, **source: Any) -> Outcome:
    """Write the plan of MODEL's conversion, for review or editing. `fuseconv convert --plan` executes a plan."""
    options = reading(**source)
    check_rules(rules, without)

    keep_freed()
    with imports():
        from fuseconv.commands import results
        from fuseconv.pipeline import conversion
        from fuseconv.pipeline.match import match as find_plan

    found = find_plan(model, rules=rules, without=without, options=options, progress=shown)
    try:
        write_whole(output, found.to_json().encode())
    except OSError as error:
        raise FileError.unwritable("the plan cannot be written", error, output) from error
    result = {"plan": str(output), **conversion.plan_to_json(found)}
    following = after_match(model, output)
    return Outcome(result, lambda console: results.print_plan(console, found, output), following=following)

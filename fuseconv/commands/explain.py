"""`fuseconv explain`: shows per rule what matched, what nearly matched, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuseconv.commands.options import json_option, model_argument, model_options, reading, rules_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured


@click.command(cls=Configured)
@model_argument
@rules_options
@model_options
@click.option(
    "--all", "everything", is_flag=True, help="Show every rejected match and near miss, not only the best per rule."
)
@click.option("--try", "tried", is_flag=True, help="Also test every match numerically, as convert does (slower).")
@json_option
def explain(
    model: Path, rules: Path | None, without: tuple[str, ...], everything: bool, tried: bool, **source: Any
) -> Outcome:
    """Show per rule where it applies in MODEL, where it was rejected and why, and its nearest misses."""
    options = reading(**source)

    from fuseconv.commands import report
    from fuseconv.pipeline import conversion
    from fuseconv.pipeline.match import explain as explain_model

    plan, told = explain_model(model, rules=rules, without=without, options=options, tried=tried, progress=shown)
    result = {"fusions": conversion.plan_to_json(plan)["fusions"], **told.to_json()}
    return Outcome(result, lambda console: report.print_explanation(console, told, everything=everything))

"""`fuseconv explain`: shows for each rule what matched, what nearly matched, and why it did not match."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fuseconv.bundle.files import MANIFEST
from fuseconv.commands.options import check_rules, json_option, model_argument, model_options, reading, rules_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured
from fuseconv.errors import UsageError
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed


@click.command(cls=Configured)
@model_argument
@rules_options
@model_options
@click.option(
    "--all", "everything", is_flag=True, help="Show every rejected match and near miss, not only the best of each rule."
)
@click.option(
    "--try",
    "tried",
    is_flag=True,
    help="Also test every match numerically, as `fuseconv convert` does. This is slower.",
)
@json_option
def explain(
    model: Path, rules: Path | None, without: tuple[str, ...], everything: bool, tried: bool, **source: Any
) -> Outcome:
    """Show for each rule where it applies in MODEL, where it was rejected and why, and its nearest misses.

    MODEL is a model as in `fuseconv convert`, or a bundle. For a bundle, the command shows the plan of the conversion,
    including the matches that were left alone, with their measured times.
    """
    options, is_bundle = reading(**source), (model / MANIFEST).is_file()
    if is_bundle and (about := [*options.flags(), *_given({"without": "--no-rule", "tried": "--try"})]):
        what = f"{about[0]} applies only to a model, but this is a bundle"
        raise UsageError(what, where=about[0], fix=f"remove {about[0]}, or give the model instead of the bundle")
    check_rules(rules, without)

    keep_freed()
    with imports():
        from fuseconv.commands import results
        from fuseconv.pipeline import conversion
        from fuseconv.pipeline.match import explain as explain_model
        from fuseconv.pipeline.match import explain_bundle

    targets: tuple[str, ...] = ()
    if is_bundle:
        plan, told, targets = explain_bundle(model, rules=rules)
    else:
        plan, told = explain_model(model, rules=rules, without=without, options=options, tried=tried, progress=shown)
    result = {"fusions": conversion.plan_to_json(plan, targets)["fusions"], **told.to_json()}
    return Outcome(result, lambda console: results.print_explanation(console, told, everything=everything))


def _given(flags: Mapping[str, str]) -> list[str]:
    """Returns the flags that the user passed on the command line. `flags` maps parameter names to flags."""
    context = click.get_current_context()
    return [flag for name, flag in flags.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]

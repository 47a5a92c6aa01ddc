"""`fuseconv explain`: per rule, what matched, what nearly did, and why not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fuseconv.commands.options import json_option, model_options, reading, rules_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown


@click.command()
@click.argument("model", type=Path)
@rules_options
@model_options
@json_option
def explain(model: Path, rules: Path | None, without: tuple[str, ...], **source: Any) -> Outcome:
    """Say per rule what matches in MODEL, what nearly does: the first node that differs, expected and found."""
    options = reading(**source)

    from fuseconv import pipeline, report

    found = pipeline.match(model, rules=rules, without=without, options=options, progress=shown)
    result = {**pipeline.plan_to_json(found), "near_misses": [asdict(miss) for miss in found.misses]}
    return Outcome(result, lambda console: report.print_explanation(console, found))

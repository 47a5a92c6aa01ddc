"""`fuseconv convert`: a model file to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuseconv.commands.options import json_option, model_options, reading, rules_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown


@click.command()
@click.argument("model", type=Path)
@rules_options
@click.option("--target", multiple=True, metavar="NAME", help="torchscript, export, aoti or onnx. [default: all four]")
@click.option("-o", "--output", type=Path, metavar="FOLDER", help="The bundle. [default: MODEL.fuseconv beside MODEL]")
@model_options
@click.option("--plan", type=Path, metavar="FILE", help="Execute this plan instead of matching rules.")
@click.option("--allow", multiple=True, metavar="NAME", help="Apply a rule that changes numbers: gelu-tanh.")
@click.option("--dry-run", is_flag=True, help="Match, print the fusions, write nothing.")
@click.option("--allow-mismatch", is_flag=True, help="Keep a bundle that fails parity, marked as such.")
@json_option
def convert(
    model: Path,
    rules: Path | None,
    without: tuple[str, ...],
    target: tuple[str, ...],
    output: Path | None,
    plan: Path | None,
    allow: tuple[str, ...],
    dry_run: bool,
    allow_mismatch: bool,
    **source: Any,
) -> Outcome:
    """Fuse MODEL, write it for four targets, prove parity.

    MODEL is a .pt2 archive, a TorchScript archive, a pickled module, a state dict, or a Hugging Face folder; what it is
    is read from its content.
    """
    options = reading(**source)

    from fuseconv import pipeline, report

    if dry_run:
        found = pipeline.match(
            model, rules=rules, without=without, target=target, options=options, plan=plan, allow=allow, progress=shown
        )
        return Outcome(pipeline.plan_to_json(found), lambda console: report.print_fusions(console, found))
    done = pipeline.convert(
        model,
        rules=rules,
        without=without,
        target=target,
        output=output,
        options=options,
        plan=plan,
        allow=allow,
        allow_mismatch=allow_mismatch,
        progress=shown,
    )
    return Outcome(done.to_json(), lambda console: report.print_conversion(console, done), pipeline.incomplete(done))

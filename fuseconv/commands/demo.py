"""`fuseconv demo`: converts a pretrained model, verifies the bundle, loads it and uses it."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.commands.completion import PATH
from fuseconv.commands.options import json_option, rules_option, targets_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.imports import imports


@click.command()
@rules_option
@click.option("-o", "--output", type=PATH, default=Path("demo.fuseconv"), show_default=True, metavar="FOLDER")
@targets_option
@quiet_option
@json_option
def demo(rules: Path | None, output: Path, target: tuple[str, ...]) -> Outcome:
    """Convert all-MiniLM-L6-v2, a real sentence-embedding model with 22 million parameters, and use the bundle."""
    with imports():
        from fuseconv.commands import demonstration, results
        from fuseconv.pipeline.convert import convert

    converted = convert(demonstration.model_folder(), rules=rules, target=target, output=output, progress=shown)
    with shown("embed"):
        embedded = demonstration.embed(output, [written.target for written in converted.written])
    rows = [{"target": one.target, "milliseconds": one.milliseconds, "cosine": one.cosine} for one in embedded]
    result = {**converted.to_json(), "embedded": rows}
    return Outcome(result, lambda console: results.print_demo(console, converted, embedded))

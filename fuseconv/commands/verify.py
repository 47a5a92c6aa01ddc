"""`fuseconv verify`: prove a bundle's parity on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuseconv.commands.options import json_option, model_options, reading
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown


@click.command()
@click.argument("bundle", type=Path)
@click.option("--against", type=Path, metavar="MODEL", help="The original; by default its outputs in the bundle.")
@model_options
@json_option
def verify(bundle: Path, against: Path | None, **source: Any) -> Outcome:
    """Prove BUNDLE's parity again: every target, case and output, against the original and float64.

    The options that say how a model is read apply to --against.
    """
    options = reading(**source)

    from fuseconv import pipeline, report

    found = pipeline.verify(bundle, against=against, options=options, progress=shown)
    error = None if found.ok else pipeline.mismatch(found, str(bundle))
    return Outcome(found.to_json(), lambda console: report.print_parity(console, found), error)

"""`fuseconv doctor`: what this machine can build and run, and whether a bundle loads here."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.commands.options import json_option
from fuseconv.commands.outcome import Outcome


@click.command()
@click.argument("bundle", type=Path, required=False)
@json_option
def doctor(bundle: Path | None) -> Outcome:
    """Say what this machine can build and run, each with the fix; with BUNDLE, whether its targets run here."""
    from fuseconv import machine, report

    found = list(machine.findings() if bundle is None else machine.bundle_findings(bundle))
    return Outcome(
        {"findings": [finding.to_json() for finding in found]}, lambda console: report.print_findings(console, found)
    )

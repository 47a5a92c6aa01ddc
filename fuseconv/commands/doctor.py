"""`fuseconv doctor`: checks what this machine can build and run, and whether a bundle loads here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.bundle.manifest import require_folder
from fuseconv.commands.completion import PATH
from fuseconv.commands.options import json_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("bundle", type=PATH, required=False)
@quiet_option
@json_option
def doctor(bundle: Path | None) -> Outcome:
    """Show for each target what this machine can build and run, and how to install what is missing.

    With BUNDLE, show which of its targets load here, without loading them. The exit status is 0 if the default target
    loads here.
    """
    if bundle is not None:
        require_folder(bundle)

    from fuseconv.commands import results
    from fuseconv.doctor import abilities, machine

    if bundle is not None:
        found, error = machine.bundle_findings(bundle)
        result = {"findings": [finding.to_json() for finding in found]}
        return Outcome(result, lambda console: results.print_findings(console, found), error)
    found, can = list(machine.findings()), list(abilities.abilities())

    def render(console: Console) -> None:
        results.print_findings(console, found)
        results.print_abilities(console, can)

    targets = [ability.to_json() for ability in can]
    return Outcome({"findings": [finding.to_json() for finding in found], "targets": targets}, render)

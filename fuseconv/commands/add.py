"""`fuseconv add`: adds the AOTInductor package of this machine to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.bundle.files import SIGNATURE
from fuseconv.commands.options import bundle_argument, json_option, pack_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.imports import imports

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@bundle_argument
@pack_options
@quiet_option
@json_option
def add(bundle: Path, rules: Path | None, trust: tuple[str, ...]) -> Outcome:
    """Add the AOTInductor package of this machine to BUNDLE, and prove its parity.

    A package runs only on GPUs of the architecture, or on CPUs with the vector instructions, for which it was compiled.
    Run the command on one machine of each kind: `load` picks the package of its machine. The model is not converted
    again, and the weights stay as they are. A bundle that has a package for this machine is left as it is. The new
    files invalidate a signature of BUNDLE: sign the bundle again.
    """
    with imports():
        from fuseconv.commands import results
        from fuseconv.pipeline.add import add as add_package

    signed = (bundle / SIGNATURE).exists()
    done = add_package(bundle, rules=rules, trust=trust, progress=shown)
    report, lost = done.report, signed and done.report is not None
    result = {
        "bundle": str(done.bundle),
        "architecture": done.architecture,
        "architectures": list(done.architectures),
        "added": report is not None,
        "signature": "removed" if lost else None,
        "targets": [] if report is None else report.to_json()["targets"],
    }

    def render(console: Console) -> None:
        is_new = "added" if report is not None else "in the bundle already: nothing was changed"
        pairs = {
            "bundle": str(done.bundle),
            "this machine": f"{done.architecture}, {is_new}",
            "packages for": ", ".join(done.architectures),
            **({"signature": "removed, because the files differ: sign the bundle again"} if lost else {}),
        }
        results.print_pairs(console, pairs)
        if report is not None:
            console.print()
            results.print_parity(console, report, everything=False)

    return Outcome(result, render)

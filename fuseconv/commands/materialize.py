"""`fuseconv materialize`: writes a target of a bundle as a file that contains its weights."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.commands.completion import PATH
from fuseconv.commands.options import bundle_argument, json_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option


@click.command()
@bundle_argument
@click.option("--target", required=True, metavar="NAME", help="Target to write: torchscript or export.")
@click.option("-o", "--output", type=PATH, required=True, metavar="FILE", help="Output file: .pt or .pt2.")
@quiet_option
@json_option
def materialize(bundle: Path, target: str, output: Path) -> Outcome:
    """Write one target of BUNDLE as a single file that contains the weights.

    torch.jit.load or torch.export.load reads the file. No other file is needed except the op libraries that the
    artifact calls.
    """
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text
    from fuseconv.pipeline.materialize import materialize as write

    write(bundle, target, output)
    pairs = {"target": target, "file": str(output), "size": size_text(output.stat().st_size)}
    return Outcome(
        {"target": target, "file": str(output), "size": output.stat().st_size},
        lambda console: results.print_pairs(console, pairs),
    )

"""`fuseconv swap`: replaces a bundle's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.bundle.files import SIGNATURE
from fuseconv.commands.completion import PATH
from fuseconv.commands.options import bundle_argument, existing, existing_model, json_option, pack_options
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@bundle_argument
@click.argument("weights", type=PATH, callback=existing_model)
@click.option(
    "--adapter",
    type=PATH,
    metavar="FOLDER",
    callback=existing,
    help="Merge this low-rank PEFT adapter into the weights.",
)
@click.option("-o", "--output", type=PATH, metavar="FOLDER", help="New bundle. [default: replace BUNDLE]")
@pack_options
@quiet_option
@json_option
def swap(
    bundle: Path, weights: Path, adapter: Path | None, output: Path | None, rules: Path | None, trust: tuple[str, ...]
) -> Outcome:
    """Replace BUNDLE's weights by other weights of the same model, and prove parity again.

    WEIGHTS is a state dict, a folder of .safetensors files, or hf://OWNER/NAME@REVISION. The weights that the plan
    merges or folds are computed again, and every target is compared with the original program and with float64 on the
    new weights. The new files invalidate a signature of BUNDLE: sign the new bundle again.
    """
    from fuseconv.commands import results
    from fuseconv.pipeline.swap import swap as swap_weights

    signed = (bundle / SIGNATURE).exists()
    done = swap_weights(bundle, weights, adapter=adapter, output=output, rules=rules, trust=trust, progress=shown)
    result = {
        "bundle": str(done.bundle),
        "kept": list(done.kept),
        "written": list(done.written),
        "left_out": list(done.left_out),
        "signature": "removed" if signed else None,
        "targets": done.report.to_json()["targets"],
    }

    def render(console: Console) -> None:
        kept, written = ", ".join(done.kept) or "none", ", ".join(done.written) or "none"
        lost = {"signature": "removed, because the files differ: sign the bundle again"} if signed else {}
        if done.left_out:
            fix = "run `fuseconv add` on machines of this kind"
            lost["left out"] = f"the packages for {', '.join(done.left_out)}, which cannot be verified here: {fix}"
        results.print_pairs(console, {"bundle": str(done.bundle), "kept": kept, "written again": written, **lost})
        console.print()
        results.print_parity(console, done.report, everything=False)

    return Outcome(result, render)

"""`fuseconv tune`: measures the tactics of a bundle on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.bundle.files import SIGNATURE
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import bundle_argument, json_option, named_targets
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.imports import imports


@click.command()
@bundle_argument
@named_targets("all targets of the bundle")
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit for the calls of the first target. Each other target gets half of it.",
)
@quiet_option
@json_option
def tune(bundle: Path, target: tuple[str, ...], seconds: float) -> Outcome:
    """Measure which backends and engines are the fastest for BUNDLE on this GPU, and store them in its tuning.json.

    `fuseconv convert` does the same on the machine where it runs. Calls never measure: at a size that was not measured,
    they use the choice that the measured sizes around it predict.
    """
    with imports():
        from fuseconv.commands import results
        from fuseconv.pipeline.tactics import tune as tune_bundle

    signed = (bundle / SIGNATURE).exists()
    tuned = tune_bundle(bundle, target=target, seconds=seconds, progress=shown)
    left = {name: count for name, count in tuned.measured.left.items() if count}
    pairs = {
        "measured": f"{tuned.sizes} sizes of {len(tuned.measured.problems)} problems",
        "calls": ", ".join(f"{name} {count}" for name, count in tuned.measured.calls.items()),
        **({"left out": ", ".join(f"{name} {count} sizes" for name, count in left.items())} if left else {}),
        "changed": f"{len(tuned.changed)} fastest tactics, {len(tuned.ties)} of them ties",
        **({"signature": "removed, because tuning.json differs: sign the bundle again"} if signed else {}),
    }
    return Outcome(tuned.to_json(), lambda console: results.print_pairs(console, pairs))

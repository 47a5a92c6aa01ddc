"""`fuseconv bench`: measures the speed of a bundle's targets on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.bundle.manifest import PLAN, read_manifest
from fuseconv.bundle.named_targets import check_named
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import (
    against_option,
    bundle_argument,
    json_option,
    model_options,
    named_targets,
    reading,
)
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.streams import tell
from fuseconv.contract.input_text import parse_sizes
from fuseconv.measure.ways import WAYS
from fuseconv.processes.imports import imports

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@bundle_argument
@method_option
@named_targets("those of the bundle")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=101, show_default=True, help="Number of timed calls per target."
)
@click.option(
    "--shape", multiple=True, metavar="DIM=SIZE", help="Size of a dynamic dim, for example 'seq=128'; may be repeated."
)
@against_option("only the targets are timed")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(WAYS),
    default=WAYS[:1],
    show_default=True,
    help="How to run the original model: in eager mode or with torch.compile.",
)
@click.option(
    "--time-limit",
    type=FiniteRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time in which a target must load and return its first result. A target that takes longer is left out.",
)
@model_options
@json_option
def bench(
    bundle: Path,
    method: str | None,
    target: tuple[str, ...],
    rounds: int,
    shape: tuple[str, ...],
    against: Path | None,
    peers: tuple[str, ...],
    time_limit: float,
    **source: Any,
) -> Outcome:
    """Measure the cold start, first call, latency, throughput and memory of BUNDLE's targets.

    The targets are called in turn, on the tensors in --inputs or on random tensors that fit the contract. The other
    options for reading a model apply to the model of --against. If the bundle was tuned, the output ends with the
    time that each class of matches saved during the conversion.
    """
    options, bundle = reading(**source), chosen(bundle, method)
    check_named(read_manifest(bundle), target, bundle)
    sizes = parse_sizes(shape)

    with imports():
        from fuseconv.commands import speeds
        from fuseconv.matching.steps import read_plan
        from fuseconv.measure import latency
        from fuseconv.tuning.gains import gains

    found = latency.measure(
        bundle,
        target=target,
        rounds=rounds,
        sizes=sizes,
        against=against,
        peers=peers,
        options=options,
        time_limit=time_limit,
    )
    for note in found.notes:
        tell(f"note: {note}, so the times are longer and less certain")
    of_rules = gains(read_plan(bundle / PLAN), [row.name for row in found.rows])

    def render(console: Console) -> None:
        speeds.print_latencies(console, found)
        if of_rules:
            console.print("\ntimes of a call with and without each class of matches, measured during the conversion\n")
            speeds.print_gains(console, of_rules)

    result = {**found.to_json(), "rules": [gain.to_json() for gain in of_rules]}
    return Outcome(result, render, next(iter(found.failures.values()), None))

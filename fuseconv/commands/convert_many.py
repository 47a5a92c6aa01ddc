"""`fuseconv convert-many`: converts a list of models, each in a separate process, on this machine or on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.commands.completion import PATH
from fuseconv.commands.convert import convert
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import existing, gpus_option, json_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import read_settings
from fuseconv.commands.streams import is_quiet, tell
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import FuseconvError, UsageError
from fuseconv.many.listing import read_listing
from fuseconv.processes.extras import needs_extra
from fuseconv.processes.imports import imports

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.many.row import Row
    from fuseconv.many.run import Workers

NOT_LISTED = frozenset(("output", "json", "quiet", "verbose", "debug", "dry-run", "lock", "frozen", "help"))
"""The options of `fuseconv convert` that apply to a single run and cannot be set for a model in a list."""


class ModelsError(FuseconvError):
    """One or more models of a list could not be converted."""

    code = "models"
    exit_status = 1


def _known() -> set[str]:
    """Returns the long names of the options of `fuseconv convert`, except `NOT_LISTED`, without leading dashes."""
    long = {
        flag[2:] for option in convert.params for flag in (*option.opts, *option.secondary_opts) if flag[:2] == "--"
    }
    return long - NOT_LISTED


@click.command("convert-many")
@click.argument("models", type=PATH, callback=existing, metavar="LIST.yaml|FOLDER")
@click.option("-o", "--output", type=PATH, required=True, metavar="FOLDER", help="Output folder for the bundles.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Number of conversions that run at the same time. [default: 1; with --ray, as many as there is room for]",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Convert on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; local starts one on this machine. Every node "
    "must see the models and FOLDER at the same path.",
)
@click.option(
    "--cpus", type=FiniteRange(0), default=1.0, show_default=True, help="Number of CPU cores per conversion on Ray."
)
@gpus_option("conversion")
@click.option(
    "--tries",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Number of tries if a tool or the device fails.",
)
@click.option(
    "--timeout", type=FiniteRange(0.001), default=3600.0, show_default=True, metavar="S", help="Time limit of one try."
)
@click.option("--again", is_flag=True, help="Convert models again whose bundles are finished and unchanged.")
@quiet_option
@json_option
def convert_many(
    models: Path,
    output: Path,
    jobs: int | None,
    ray: str | None,
    cpus: float,
    gpus: float,
    tries: int,
    timeout: float,
    again: bool,
) -> Outcome:
    """Convert the models of a list or a folder, each in its own process.

    A finished bundle is kept while its source, the rules, its options and the versions are the same. A model that
    fails does not stop the others; the exit status is 1 if any model failed. The command writes NAME.fuseconv and
    NAME.json for each model, and an index.html, into FOLDER. After an interrupt, run the command again to continue.
    """
    entries = read_listing(models.absolute(), _known())
    workers = _workers(jobs, ray, cpus, gpus)
    with imports():
        from fuseconv.many import run
        from fuseconv.many.conversion import How
        from fuseconv.many.index import write_index

    seen = 0

    def told(row: Row) -> None:
        nonlocal seen
        seen += 1
        if not is_quiet():
            reason = f": {row.error.splitlines()[0]}" if row.error else ""
            tell(f"[{seen}/{len(entries)}] {row.name}  {row.status}  {row.seconds:.1f} s{reason}")

    settings = read_settings(Path.cwd())
    project = settings.root if settings.path is not None else None
    how = How(tries, timeout, again, settings.values, project)
    rows = run.convert_many(entries, output, workers, how, told)
    index = write_index(output, rows)
    result = {"rows": [row.to_json() for row in rows], "index": str(index)}
    return Outcome(result, lambda console: _print(console, rows, index), _error(rows, output))


def _workers(jobs: int | None, address: str | None, cpus: float, gpus: float) -> Workers:
    """Returns what makes the conversions: a pool of processes on this machine, or a Ray cluster.

    Raises:
        UsageError: `cpus` or `gpus` differs from its default, but there is no `address`.
        UpstreamError: Ray is not installed.
    """
    if address is None:
        if cpus != 1 or gpus:
            fix = "add --ray ADDRESS, or remove --cpus and --gpus"
            raise UsageError("--cpus and --gpus apply only to Ray", where="convert-many", fix=fix)
        from fuseconv.many.pool import Pool

        return Pool(jobs or 1)
    with shown("ray"), needs_extra("ray"):
        from fuseconv.many.on_ray import Cluster

    return Cluster(address, jobs, cpus, gpus)


def _error(rows: Sequence[Row], output: Path) -> FuseconvError | None:
    """Returns the error that names the failed models, or None if no model failed."""
    failed = [row for row in rows if row.status == "failed"]
    if not failed:
        return None
    what = f"{len(failed)} of {len(rows)} models failed: {', '.join(row.name for row in failed)}"
    return ModelsError(what, where=str(output), fix="see the reasons above; the next run keeps the finished bundles")


def _print(console: Console, rows: Sequence[Row], index: Path) -> None:
    from fuseconv.commands.table import Table

    numbers = ("fusions", "max error", "seconds")
    table = Table("model", "status", "targets", "fusions", "max error", "seconds", numbers=numbers)
    for row in rows:
        error = "" if row.max_abs is None else f"{row.max_abs:.1e}"
        fusions = str(row.fusions) if row.targets else ""
        table.add(row.name, row.status, ", ".join(row.targets), fusions, error, f"{row.seconds:.1f}")
    console.print(table)
    for row in rows:
        if row.error:
            console.print(f"\n{row.name}: {row.error}", highlight=False, markup=False)
    console.print(f"\n{index}", highlight=False, markup=False)

"""`fuseconv report`: writes an HTML file that shows one bundle, or two bundles side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.bundle.manifest import check_outside
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.commands.completion import PATH
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import json_option, writable
from fuseconv.commands.outcome import Outcome
from fuseconv.errors import UsageError

if TYPE_CHECKING:
    from fuseconv.report.described import Described


def _output(context: click.Context, argument: click.Parameter, path: Path | None) -> Path | None:
    return None if path is None else writable(context, argument, path)


@click.command()
@click.argument("bundles", type=PATH, metavar="BUNDLE [BUNDLE]", nargs=-1, required=True)
@method_option
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", callback=_output, help="HTML file. [default: NAME.html next to BUNDLE]"
)
@click.option(
    "--blame",
    "blames",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Output of `fuseconv blame BUNDLE --json`, for the errors of the layers. Repeat for each bundle.",
)
@json_option
def report(bundles: tuple[Path, ...], method: str | None, output: Path | None, blames: tuple[Path, ...]) -> Outcome:
    """Write an HTML report on BUNDLE: parity, the graph before and after, matches, misses, times and files.

    The report shows two bundles side by side, and needs no network. The command neither runs a bundle nor measures
    anything: the errors of the layers come from an earlier `fuseconv blame`.
    """
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text
    from fuseconv.report.described import describe
    from fuseconv.report.page import Report, check_built, write
    from fuseconv.version import __version__

    check_built()
    if len(bundles) > 2:
        what = f"{len(bundles)} bundles are given, but a report shows at most two"
        raise UsageError(what, where=str(bundles[2]), fix="write one report for each pair of bundles")
    folders = [folder for bundle in bundles for folder in _folders(chosen(bundle, method))]
    if len(blames) > len(folders):
        what = f"{len(blames)} --blame files are given, but the report shows only {len(folders)} models"
        raise UsageError(
            what, where="--blame", fix="give one --blame for each bundle, or for each method of a bundle, in order"
        )
    path = output if output is not None else bundles[0].absolute().with_suffix(".html")
    for bundle in bundles:
        check_outside(path, bundle)
    given = [*blames, *[None] * (len(folders) - len(blames))]
    shown = [describe(folder, blame) for folder, blame in zip(folders, given, strict=True)]
    size = write(Report(__version__, tuple(shown)), path)
    pairs = {"report": str(path), "size": size_text(size), **_absent(shown)}
    result = {"report": str(path), "size": size, "bundles": [one.name for one in shown]}
    return Outcome(result, lambda console: results.print_pairs(console, pairs))


def _folders(bundle: Path) -> list[Path]:
    """Returns the folders of a bundle's methods, or the bundle itself if it is a bundle of one method."""
    if not has_methods(bundle):
        return [bundle]
    return [method_folder(bundle, name) for name in open_methods(bundle).methods]


def _absent(shown: Sequence[Described]) -> dict[str, str]:
    """Returns the missing parts of the report. Each entry names the bundles that lack the part, and how to add it."""
    absent = {
        "no graph before": ([one.name for one in shown if one.captured is None], "convert the model again"),
        "no graph after": ([one.name for one in shown if one.fused is None], "convert the model again"),
        "no times": ([one.name for one in shown if one.tuned is None], "convert with --tune quick"),
    }
    lacking = {what: f"{', '.join(names)}: {fix}" for what, (names, fix) in absent.items() if names}
    for one in shown:
        if one.growth is None:
            command, file = one.measure
            of = f" of {one.name}" if len(shown) > 1 else ""
            lacking[f"no error growth{of}"] = f"{command}, then --blame {file}"
    return lacking

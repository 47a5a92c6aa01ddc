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
    help="Error through the layers: what `fuseconv blame BUNDLE --json` printed. May be repeated, one per bundle.",
)
@json_option
def report(bundles: tuple[Path, ...], method: str | None, output: Path | None, blames: tuple[Path, ...]) -> Outcome:
    """Show what is in BUNDLE in one HTML file: parity, the graph before and after, matches, misses, times and files.

    Two bundles are shown side by side. The file needs no network. Nothing in a bundle is run, and nothing is measured:
    the error through the layers is that of an earlier `fuseconv blame`.
    """
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text
    from fuseconv.report.described import describe
    from fuseconv.report.page import Report, check_built, write
    from fuseconv.version import __version__

    check_built()
    if len(bundles) > 2:
        what = f"{len(bundles)} bundles are given, and a report shows one or two"
        raise UsageError(what, where=str(bundles[2]), fix="write a report for every two")
    folders = [folder for bundle in bundles for folder in _folders(chosen(bundle, method))]
    if len(blames) > len(folders):
        what = f"{len(blames)} files of errors are given for {len(folders)}"
        raise UsageError(what, where="--blame", fix="give one --blame per bundle, or per method of a bundle, in order")
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
    """Returns the parts that the report lacks because a bundle does not contain them, each with how to get the part."""
    absent = {
        "no graph before": ([one.name for one in shown if one.captured is None], "convert the model again"),
        "no graph after": ([one.name for one in shown if one.fused is None], "convert with the target export too"),
        "no times": ([one.name for one in shown if one.tuned is None], "convert with --tune quick"),
        "no error growth": (
            [one.name for one in shown if one.growth is None],
            "fuseconv blame BUNDLE --against MODEL --json > blame.json, then --blame blame.json",
        ),
    }
    return {what: f"{', '.join(names)}: {fix}" for what, (names, fix) in absent.items() if names}

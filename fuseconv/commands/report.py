"""`fuseconv report`: writes an HTML file that shows one bundle or model, or two side by side."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import bundle_folder, check_outside
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.commands.completion import PATH
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import against_option, json_option, model_options, reading, writable
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import UsageError
from fuseconv.processes.imports import imports
from fuseconv.untrusted.hub import reference

if TYPE_CHECKING:
    from fuseconv.contract.options import Options
    from fuseconv.report.described import Described


def _output(context: click.Context, argument: click.Parameter, path: Path | None) -> Path | None:
    return None if path is None else writable(context, argument, path)


@click.command()
@click.argument("bundles", type=PATH, metavar="BUNDLE|MODEL [BUNDLE|MODEL]", nargs=-1, required=True)
@method_option
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", callback=_output, help="HTML file. [default: NAME.html next to BUNDLE]"
)
@click.option(
    "--growth",
    is_flag=True,
    help="First measure how the error grows through the layers, as `fuseconv blame` does. Always done for a MODEL.",
)
@against_option("the program and weights stored in the bundle")
@click.option(
    "--blame",
    "blames",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Output of an earlier `fuseconv blame BUNDLE --json`, in place of --growth. Repeat for each bundle.",
)
@model_options
@quiet_option
@json_option
def report(
    bundles: tuple[Path, ...],
    method: str | None,
    output: Path | None,
    growth: bool,
    against: Path | None,
    blames: tuple[Path, ...],
    **source: Any,
) -> Outcome:
    """Write an HTML report on BUNDLE: parity, the graph before and after, matches, misses, times and files.

    The report shows two bundles side by side, and needs no network. A MODEL is first converted to a bundle that is not
    kept, in which the options for reading a model apply. For a bundle they apply to the model of --against. Without
    --growth and a MODEL, the command runs nothing from a bundle and measures nothing.
    """
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text
    from fuseconv.report.described import describe
    from fuseconv.report.page import Report, check_built, write
    from fuseconv.version import __version__

    check_built()
    options = reading(**source)
    if len(bundles) > 2:
        what = f"{len(bundles)} bundles are given, but a report shows at most two"
        raise UsageError(what, where=str(bundles[2]), fix="write one report for each pair of bundles")
    if blames and (growth or against is not None):
        given = "--growth" if growth else "--against"
        raise UsageError(f"--blame cannot be combined with {given}", where="--blame", fix=f"remove --blame or {given}")
    models = [path for path in bundles if _is_model(path)]
    if not models:
        options.require_original(against)
    path = output if output is not None else _beside(bundles[0])
    for bundle in bundles:
        if bundle not in models:
            check_outside(path, bundle)
    with tempfile.TemporaryDirectory() as scratch:
        made = {model: _converted(model, Path(scratch, str(at)), options) for at, model in enumerate(models)}
        folders = [folder for one in bundles for folder in _folders(chosen(made.get(one, one), method))]
        if len(blames) > len(folders):
            what = f"{len(blames)} --blame files are given, but the report shows only {len(folders)} models"
            raise UsageError(
                what, where="--blame", fix="give one --blame for each bundle, or for each method of a bundle, in order"
            )
        files = [*blames, *[None] * (len(folders) - len(blames))]
        originals = {folder: model for model, folder in made.items()}
        for at, folder in enumerate(folders):
            if growth or against is not None or folder in originals:
                file = Path(scratch, f"{at}.json")
                _measure(folder, originals.get(folder, against), options, file)
                files[at] = file
        described = [describe(folder, file) for folder, file in zip(folders, files, strict=True)]
    size = write(Report(__version__, tuple(described)), path)
    pairs = {"report": str(path), "size": size_text(size), **_absent(described)}
    result = {"report": str(path), "size": size, "bundles": [one.name for one in described]}
    return Outcome(result, lambda console: results.print_pairs(console, pairs))


def _is_model(path: Path) -> bool:
    """Returns whether a path is a model rather than a bundle. A folder is a model if it has a config.json."""
    if reference(path) is not None or path.is_file():
        return True
    return (path / "config.json").is_file() and not (path / MANIFEST).is_file()


def _beside(path: Path) -> Path:
    """Returns the default path of the report of a bundle or model."""
    return (bundle_folder(path, None) if _is_model(path) else path).absolute().with_suffix(".html")


def _converted(model: Path, folder: Path, options: Options) -> Path:
    """Converts a model for all targets to a bundle in this folder, also if its parity fails, and returns the bundle."""
    with imports():
        from fuseconv.pipeline.convert import convert

    bundle = folder / bundle_folder(model, None).name
    return convert(model, output=bundle, options=options, allow_mismatch=True, progress=shown).bundle


def _measure(folder: Path, against: Path | None, options: Options, file: Path) -> None:
    """Compares a bundle with its original, layer by layer, and writes what `fuseconv blame --json` prints to a file."""
    with imports():
        from fuseconv.pipeline.blame import blame

    found = blame(folder, against=against, options=options, progress=shown)
    file.write_text(json.dumps({"command": "blame", "result": found.to_json(), "error": None}))


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
            of = f" of {one.name}" if len(shown) > 1 else ""
            lacking[f"no error growth{of}"] = one.measure
    return lacking

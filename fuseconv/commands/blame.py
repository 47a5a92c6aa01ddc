"""`fuseconv blame`: finds where a numerical difference comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import read_manifest
from fuseconv.bundle.named_targets import check_named
from fuseconv.commands.completion import PATH
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import (
    against_option,
    check_rules,
    json_option,
    model_argument,
    model_options,
    named_targets,
    plan_options,
    reading,
    rules_options,
)
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured
from fuseconv.commands.verbosity import quiet_option, verbose_option
from fuseconv.errors import ParityError, UnsupportedError
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed
from fuseconv.untrusted.hub import reference

if TYPE_CHECKING:
    from fuseconv.blaming.verdict import Blame
    from fuseconv.errors import FuseconvError


@click.command(cls=Configured)
@model_argument
@against_option("the program and weights stored in the bundle")
@rules_options
@named_targets("those of the bundle, or all")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FOLDER",
    help="Folder for the scripts that reproduce the difference. [default: MODEL.blame next to MODEL]",
)
@model_options
@plan_options
@click.option(
    "--time-limit",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Start no further comparison after this time.",
)
@verbose_option
@quiet_option
@json_option
def blame(
    model: Path,
    against: Path | None,
    rules: Path | None,
    without: tuple[str, ...],
    target: tuple[str, ...],
    output: Path | None,
    plan: Path | None,
    allow: tuple[str, ...],
    time_limit: float,
    verbose: bool,
    **source: Any,
) -> Outcome:
    """Find which rule, op, weight, target or layer makes a result of MODEL differ from the original.

    MODEL is a bundle, or a model as in `fuseconv convert`; the targets of a model are first written. For each cause,
    the command writes a script that reproduces the difference, with the tensors that the script needs. If MODEL is a
    bundle, the options for reading a model apply to the model of --against.
    """
    options = reading(**source)
    if (model / MANIFEST).is_file():
        check_named(read_manifest(model), target, model)
    check_rules(rules, without, allow)

    keep_freed()
    with imports():
        from fuseconv.commands import blame_lines
        from fuseconv.pipeline.blame import blame as find

    folder = output if output is not None else _beside(model)
    found = find(
        model,
        against=against,
        rules=rules,
        without=without,
        target=target,
        options=options,
        plan=plan,
        allow=allow,
        output=folder,
        time_limit=time_limit,
        progress=shown,
    )
    return Outcome(
        found.to_json(),
        lambda console: blame_lines.print_blame(console, found, everything=verbose),
        _error(found, model),
    )


def _beside(model: Path) -> Path:
    """Returns the default folder for the scripts that reproduce differences, next to the model: `MODEL.blame`."""
    if (on_hub := reference(model)) is not None:
        return Path(f"{on_hub.name}.blame")
    path = model.absolute()
    return path.with_name(f"{path.name if path.is_dir() and not (path / MANIFEST).is_file() else path.stem}.blame")


def _error(found: Blame, model: Path) -> FuseconvError | None:
    """Returns the error for a difference or for targets that could not be compared, or None if there is neither."""
    where, is_bundle = str(model), (model / MANIFEST).is_file()
    if found.faults:
        first = found.faults[0]
        fix = f"run `python {first.repro}`, which exits with 1 while the difference exists" if first.repro else ""
        several = f"{len(found.faults)} causes; first: " if len(found.faults) > 1 else ""
        return ParityError(f"{several}{first.sentence}", where=where, fix=fix)
    if found.unable and (is_bundle or not found.compared):  # for a model, some targets may be unable to express it
        reasons = "; ".join(f"{target}: {reason}" for target, reason in found.unable.items())
        return UnsupportedError(
            f"targets could not be compared: {reasons}", where=where, fix="correct what the reasons name"
        )
    return None

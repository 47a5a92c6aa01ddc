"""`fuseconv rules draft`: writes a rule for a subgraph of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.commands.completion import PATH
from fuseconv.commands.following import after_draft
from fuseconv.commands.options import check_rules, json_option, model_argument, model_options, reading, rules_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.imports import imports

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.drafting.draft import Draft


@click.command(cls=Configured, short_help="Write a rule for a subgraph of a model.")
@model_argument
@click.option(
    "--from",
    "first",
    multiple=True,
    required=True,
    metavar="NODE",
    help="First node of the subgraph. May be repeated.",
)
@click.option(
    "--to",
    "last",
    multiple=True,
    required=True,
    metavar="NODE",
    help="Last node, whose value is a result of the subgraph. May be repeated.",
)
@click.option(
    "--op", metavar="NAME", help="Write a rule pack with a new op of this name. [default: use an existing op]"
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="PATH",
    help="Rule file, or folder of the rule pack. [default: named after the rule or op]",
)
@rules_option
@model_options
@quiet_option
@json_option
def draft(
    model: Path,
    first: tuple[str, ...],
    last: tuple[str, ...],
    op: str | None,
    output: Path | None,
    rules: Path | None,
    **source: Any,
) -> Outcome:
    """Write a rule for the subgraph of MODEL between two nodes, which are named as `explain` and `match` print them.

    The subgraph contains every op on a path from a --from node to a --to node. Without --op, the rule calls an existing
    op that computes the same. With --op, the command writes a rule pack with a new op, whose kernel is correct and can
    be made faster by hand.
    """
    options = reading(**source)
    check_rules(rules, ())

    with imports():
        from fuseconv.pipeline.draft import draft as write_draft

    made, path = write_draft(
        model, first=first, last=last, op=op, rules=rules, output=output, options=options, progress=shown
    )
    result = {
        "rule": made.rule,
        "op": made.op,
        "path": str(path),
        "nodes": list(made.nodes),
        "places": [list(place) for place in made.places],
    }
    following = after_draft(model, path, made.rule, is_pack=made.is_pack)
    return Outcome(result, lambda console: _print(console, made, path), following=following)


def _print(console: Console, made: Draft, path: Path) -> None:
    count, ends = len(made.places), ", ".join(place[-1] for place in made.places)
    lines = [
        f"rule {made.rule}: {len(made.nodes)} ops become {made.op}",
        f"matches {count} {'place' if count == 1 else 'places'} of the model, which end at {ends}",
        f"wrote {path}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)

"""Renders the verdicts of `fuseconv blame` as text.

A verdict is the cause of one numerical difference. A border of a module or match is a node whose value is compared with
the fp64 reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseconv.commands.table import Table, mark

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.blaming.verdict import Blame, Verdict


def print_blame(console: Console, found: Blame, *, everything: bool) -> None:
    """Prints the verdicts, or that there is no difference, and the targets that could not be compared.

    With `everything`, first prints a table of the error at each border of a module or match.
    """
    if everything:
        _print_growth(console, found)
        console.print()
    for verdict in found.verdicts:
        for line in verdict_lines(verdict):
            console.print(line, highlight=False, markup=False)
        console.print()
    compared = ", ".join(("fused in PyTorch", *found.compared))
    if not found.verdicts:
        console.print(f"no difference: {compared}", highlight=False, markup=False)
    for target, reason in found.unable.items():
        console.print(f"not compared: {target}: {reason}", highlight=False, markup=False)


def print_faults(console: Console, found: Blame, command: str) -> None:
    """Prints the verdicts of a failed conversion, and the command that writes scripts to reproduce the differences."""
    for verdict in found.faults:
        for line in verdict_lines(verdict):
            if not line.startswith("  repro"):
                console.print(line, highlight=False, markup=False)
        console.print()
    if found.faults:
        console.print(f"to write a script that shows the difference, run `{command}`", highlight=False, markup=False)


def verdict_lines(verdict: Verdict) -> list[str]:
    """Formats a verdict as lines: the cause, its place, the error, and the script that reproduces the difference."""
    border = verdict.border
    lines = {"target": ", ".join(verdict.targets) or "all: the result differs before a target is written"}
    if border is not None:
        matched = f"{border.rule} at {', '.join(border.match)}" if border.rule else ""
        step = "" if verdict.step is None else f" (step {verdict.step} of the plan)"
        lines |= {"layer": border.layer or "the model itself", "op": border.op, "node": border.node}
        lines |= {"rule": matched + step} if matched else {}
        lines |= {"line": border.line} if border.line else {}
    lines["case"] = verdict.case
    if verdict.row is not None:
        lines["error"] = verdict.row.reason
    if verdict.detail:
        lines["found"] = verdict.detail
    lines["repro"] = str(verdict.repro) if verdict.repro is not None else f"none: {verdict.unshown}"
    limit = "a limit of the runtime for special values, which `fuseconv convert` records; " if verdict.limit else ""
    return [f"{limit}{verdict.meaning}", *(f"  {name:<8}{text}" for name, text in lines.items())]


def _print_growth(console: Console, found: Blame) -> None:
    """Prints one row per border of a module or match: its error in the original and in the fused program."""
    columns = ("node", "layer", "op", "rule", "rms", "original", "fused")
    table = Table(*columns, "ok", numbers=("rms", "original", "fused"))
    for one in found.growth:
        border = one.border
        numbers = [one.rms_fp64, one.original.rmse_vs_fp64, one.fused.rmse_vs_fp64]
        cells = [f"{number:.1e}" for number in numbers]
        table.add(border.node, border.layer, border.op, border.rule, *cells, mark(one.fused.ok))
    console.print(f"error against fp64 at each border, case {found.case}", highlight=False, markup=False)
    console.print(table)

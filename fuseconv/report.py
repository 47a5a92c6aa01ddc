"""Rows to text: the only file that knows how tables look. Values for --json come from the nouns themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fuseconv.demo import Embedded
    from fuseconv.machine import Finding
    from fuseconv.parity import Report
    from fuseconv.pipeline import Conversion
    from fuseconv.rule import Rule
    from fuseconv.rule_check import Check
    from fuseconv.steps import Miss, Plan


def _table(*columns: str, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def print_fusions(console: Console, plan: Plan) -> None:
    """Prints how often each rule is applied, by stage."""
    if not plan.steps:
        console.print("no rule applies")
        return
    counts: dict[tuple[str, str], list[int]] = {}
    for step in plan.steps:
        count = counts.setdefault((step.stage, step.rule), [0, 0])
        count[0] += 1
        count[1] += len(step.nodes)
    table = _table("stage", "rule", "sites", "nodes", numbers=("sites", "nodes"))
    for (stage, rule), (sites, nodes) in counts.items():
        table.add_row(stage, rule, str(sites), str(nodes))
    console.print(table)


def print_misses(console: Console, misses: Sequence[Miss], *, most: int = 20) -> None:
    """Prints the near misses: the first node that differed, what was expected and found, the model's source line."""
    for miss in misses[:most]:
        console.print(f"[bold]{miss.rule}[/] at {miss.node}: {miss.reason}", highlight=False)
        for name, value in (("expected", miss.expected), ("found", miss.found), ("model", miss.where)):
            if value:
                console.print(f"    {name}: {value}", highlight=False, markup=False)
    if len(misses) > most:
        console.print(f"... and {len(misses) - most} more (--json has all)")


def print_plan(console: Console, plan: Plan, path: Path) -> None:
    """Prints the fusions of a plan, and where it was written."""
    print_fusions(console, plan)
    console.print(f"\n{len(plan.steps)} steps in {path}", highlight=False)


def print_explanation(console: Console, plan: Plan) -> None:
    """Prints the fusions of a plan, then what nearly matched."""
    print_fusions(console, plan)
    if plan.misses:
        console.print(f"\n{len(plan.misses)} near misses", style="bold")
        print_misses(console, plan.misses)


def print_conversion(console: Console, conversion: Conversion) -> None:
    """Prints what was written: fusions, then one line a target."""
    print_fusions(console, conversion.plan)
    console.print()
    table = _table(
        "target", "artifact", "size", "seconds", "parity", "max error", numbers=("size", "seconds", "max error")
    )
    worst = worst_rows(conversion.report)
    for written in conversion.written:
        ok, max_abs = worst[written.target]
        table.add_row(
            written.target, written.path, size_text(written.size), f"{written.seconds:.1f}", mark(ok), f"{max_abs:.1e}"
        )
    for target, reason in conversion.skipped.items():
        table.add_row(target, "not written", "", "", "", "")
        console.print(f"{target}: {reason}", highlight=False, markup=False)
    console.print(table)
    console.print(f"\nbundle: {conversion.bundle}", highlight=False)


def worst_rows(report: Report) -> dict[str, tuple[bool, float]]:
    """Returns for each target whether all of its rows pass, and its largest absolute difference from the original."""
    worst: dict[str, tuple[bool, float]] = {}
    for row in report.rows:
        ok, max_abs = worst.get(row.target, (True, 0.0))
        worst[row.target] = (ok and row.row.ok, max(max_abs, row.row.max_abs))
    return worst


def print_parity(console: Console, report: Report) -> None:
    """Prints every row of a report."""
    columns = ("target", "case", "output", "parity", "max abs", "max rel", "rmse vs f64", "original's")
    table = _table(*columns, numbers=columns[4:])
    for row in report.rows:
        one = row.row
        errors = (one.max_abs, one.max_rel, one.rmse_vs_fp64, one.rmse_original_vs_fp64)
        table.add_row(row.target, row.case, row.output, mark(one.ok), *(f"{error:.1e}" for error in errors))
    console.print(table)
    for row in report.rows:
        if not row.row.ok:
            console.print(f"{row.target}, {row.case}, {row.output}: {row.row.reason}", highlight=False, markup=False)


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Prints each rule's name, stage and sentence."""
    table = _table("rule", "stage", "finds")
    for rule in rules:
        table.add_row(rule.name, rule.stage, rule.doc)
    console.print(table)


def print_rule(console: Console, rule: Rule) -> None:
    """Prints one rule as its file says it: alternatives, conditions, replacement."""
    console.print(f"[bold]{rule.name}[/]  ({rule.stage})\n{rule.doc}\n", highlight=False)
    for number, lines in enumerate(rule.texts):
        console.print("match" if number == 0 else "or", style="bold")
        for line in lines:
            console.print(f"    {line}", highlight=False, markup=False)
    for title, texts in (("where", rule.where), ("replace", rule.replace)):
        if texts:
            console.print(title, style="bold")
        for text in texts:
            console.print(f"    {text}", highlight=False, markup=False)


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Prints one line a rule checked, and the counter-example of each that fails."""
    table = _table("", "rule", "hits", "misses", numbers=("hits", "misses"))
    for check in checks:
        table.add_row(mark(check.ok), check.rule, str(check.hits), str(check.misses))
    console.print(table)
    for check in checks:
        if not check.ok:
            console.print(f"{check.rule}: {check.problem}", highlight=False, markup=False)


def print_demo(console: Console, conversion: Conversion, embedded: Sequence[Embedded]) -> None:
    """Prints the demonstration's one table, the fusions, and how to go on."""
    worst, sizes = worst_rows(conversion.report), {one.target: one.size for one in conversion.written}
    eager = next(one for one in embedded if one.target == "eager")
    numbers = ("size", "max error", "ms a batch", "speed", "cosine")
    table = _table("target", "size", "parity", "max error", "ms a batch", "speed", "cosine", numbers=numbers)
    for one in embedded:
        speed = f"{eager.milliseconds / one.milliseconds:.2f}x"
        cells = ("", "", "") if one is eager else _judged(worst[one.target], sizes[one.target])
        table.add_row(one.target, *cells, f"{one.milliseconds:.1f}", speed, f"{one.cosine:.9f}")
    console.print(table)
    console.print("\nspeed and cosine: against the original model in eager PyTorch, one batch of five sentences\n")
    print_fusions(console, conversion.plan)
    for target, reason in conversion.skipped.items():
        console.print(f"{target} was not written: {reason}", highlight=False, markup=False)
    console.print(f"\nThe bundle is in [bold]{conversion.bundle}[/]. Load it anywhere that has torch and fuseconv:\n")
    console.print(f"    import fuseconv\n    model = fuseconv.load({str(conversion.bundle)!r})", highlight=False)
    console.print("    hidden, pooled = model(input_ids, attention_mask, token_type_ids)", highlight=False)


def _judged(worst: tuple[bool, float], size: int) -> tuple[str, str, str]:
    ok, max_abs = worst
    return size_text(size), mark(ok), f"{max_abs:.1e}"


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Prints what a machine or a bundle has, and the remedy for what it lacks."""
    table = _table("", "what", "found", "fix")
    for finding in findings:
        table.add_row(mark(finding.ok), finding.name, finding.found, "" if finding.ok else finding.fix)
    console.print(table)


def print_pairs(console: Console, pairs: Mapping[str, object]) -> None:
    """Prints names and values in two columns."""
    table = _table("", "")
    table.show_header = False
    for name, value in pairs.items():
        table.add_row(name, str(value))
    console.print(table)


def mark(ok: bool) -> str:
    """Returns `ok` or `FAIL`, coloured."""
    return "[green]ok[/]" if ok else "[red]FAIL[/]"


def size_text(size: int) -> str:
    """Returns a size in bytes as people read it: 87.4 MB."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"

"""Prints the results of commands as text, except times, which `speeds` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from fuseconv.commands.error_lines import error_lines
from fuseconv.commands.speeds import print_peers
from fuseconv.commands.table import Table, mark, size_text
from fuseconv.commands.tuned_lines import left_alone_lines, tuned_lines
from fuseconv.matching.explanation import alike
from fuseconv.matching.steps import SEARCH

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fuseconv.bundle.manifest import Limit
    from fuseconv.commands.demonstration import Embedded
    from fuseconv.doctor.abilities import Ability
    from fuseconv.doctor.machine import Finding
    from fuseconv.errors import FuseconvError
    from fuseconv.matching.explanation import Explained, Explanation
    from fuseconv.matching.steps import Miss, Plan
    from fuseconv.parity.matrix import Cell, Matrix
    from fuseconv.parity.report import Report
    from fuseconv.pipeline.conversion import Conversion
    from fuseconv.pipeline.methods import MethodsConversion
    from fuseconv.proof.check_row import CheckRow
    from fuseconv.rulebook.rule import Rule

MOST_REASONS = 3
"""The maximum number of reasons that are printed for a rule's rejected matches."""


def print_fusions(console: Console, plan: Plan) -> None:
    """Prints for each stage and rule the number of applied matches, and of the nodes that they replace."""
    if not plan.applied:
        console.print("no rule applies")
        return
    counts: dict[tuple[str, str], list[int]] = {}
    for step in plan.applied:
        count = counts.setdefault((step.stage, step.rule), [0, 0])
        count[0] += 1
        count[1] += len(step.nodes)
    table = Table("stage", "rule", "matches", "nodes", numbers=("matches", "nodes"))
    for (stage, rule), (matches, nodes) in counts.items():
        table.add(stage, rule, str(matches), str(nodes))
    console.print(table)


def print_plan(console: Console, plan: Plan, path: Path) -> None:
    """Prints the fusions in a plan, and the path of the plan file."""
    print_fusions(console, plan)
    console.print(f"\n{len(plan.applied)} steps in {path}", highlight=False)


def print_explanation(console: Console, told: Explanation, *, everything: bool = False) -> None:
    """Prints for each rule, grouped by rule file, its matches, why matches were rejected, and the nearest miss.

    A near miss is a subgraph that the rule almost matched. Rejected matches that differ only in their layer share a
    line. With `everything`, prints each rejected match on its own line, and all near misses.
    """
    silent = [rule for rule in told.rules if not (rule.applied or rule.left_alone or rule.near_miss)]
    families: dict[str, list[Explained]] = {}
    for rule in told.rules:
        if rule not in silent:
            families.setdefault(rule.family, []).append(rule)
    for family, rules in families.items():
        console.print(Text(family or "rules", style="bold"), highlight=False)
        for rule in rules:
            _print_explained(console, rule, everything=everything)
        console.print()
    console.print(f"{len(silent)} of {len(told.rules)} rules have no match and no near miss", highlight=False)


def _print_explained(console: Console, rule: Explained, *, everything: bool) -> None:
    rejected = "tried" if rule.stage == SEARCH else "rejected"
    counts = {
        "applied": len(rule.applied),
        "left alone": len(rule.left_alone),
        rejected: len(rule.rejected),
        "nearly matched": len(rule.near_misses),
    }
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    console.print(f"  {rule.rule}: {text}", highlight=False, markup=False)
    left = [(one.nodes[-1], target, choice) for one in rule.left_alone for target, choice in one.choices.items()]
    for line in left_alone_lines(left):
        console.print(f"    {line}", highlight=False, markup=False)
    groups = [(miss, 1) for miss in rule.rejected] if everything else alike(rule.rejected)
    for miss, count in groups if everything else groups[:MOST_REASONS]:
        _print_miss(console, rejected + (f" {count} times, first" if count > 1 else ""), miss)
    if len(groups) > MOST_REASONS and not everything:
        console.print(f"    and {len(groups) - MOST_REASONS} other reasons (--all shows them)", highlight=False)
    for miss in rule.near_misses if everything else rule.near_misses[:1]:
        _print_miss(console, f"{miss.matched} of {miss.ops} ops", miss)


def _print_miss(console: Console, what: str, miss: Miss) -> None:
    """Prints where a rule failed to match, what was expected and found, and the source line of the model."""
    differs = f", differs at {miss.differs}" if miss.differs not in ("", miss.node) else ""
    lines = [f"    {what} at {miss.node}{differs}"]
    if miss.reason != f"expected {miss.expected}, found {miss.found}":
        lines.append(f"      {miss.reason}")
    else:
        lines += [f"      expected  {miss.expected}", f"      found     {miss.found}"]
    if miss.where:
        lines.append(f"      model     {miss.where}")
    for line in lines:
        console.print(line, highlight=False, markup=False)


def print_conversion(console: Console, conversion: Conversion) -> None:
    """Prints the result of a conversion: the fusions, one row per target, rejected matches, and measured times."""
    print_fusions(console, conversion.plan)
    console.print()
    table = Table(
        "target", "artifact", "size", "seconds", "parity", "max error", numbers=("size", "seconds", "max error")
    )
    worst = worst_rows(conversion.report)
    for written in conversion.written:
        ok, max_abs = worst[written.target]
        table.add(
            written.target, written.path, size_text(written.size), f"{written.seconds:.1f}", mark(ok), f"{max_abs:.1e}"
        )
    for left in conversion.left_out:
        table.add(left.target, "left out", "", "", "", "")
    console.print(table)
    _print_shortfall(console, conversion)
    if conversion.plan.rejected:
        console.print(f"\nmatches rejected and left unfused: {len(conversion.plan.rejected)}", style="bold")
        for miss in conversion.plan.rejected:
            _print_miss(console, miss.rule, miss)
    lines = [f"search: {note}" for form in conversion.forms.values() for note in form.notes]
    lines += tuned_lines(conversion.plan, conversion.tuned) if conversion.tuned is not None else []
    for line in ["", *lines] if lines else []:
        console.print(line, highlight=False, markup=False)
    if conversion.peers:
        console.print()
        print_peers(console, conversion.peers)
    if conversion.varying is not None:
        same = [one.target for one in conversion.written if one.target not in conversion.varying]
        console.print(f"\nreproducible: {', '.join(same) or 'no target'}", highlight=False)
        for name, reason in conversion.varying.items():
            console.print(f"not reproducible: {name}: {reason}", highlight=False)
    console.print(f"\nweights: {size_text(conversion.weights)}, weights.safetensors", highlight=False)
    console.print(f"bundle: {conversion.bundle}", highlight=False)


def print_methods(console: Console, done: MethodsConversion) -> None:
    """Prints the conversion of each method, the parity of the bundle, and the weights that the methods share."""
    for name, one in done.methods.items():
        console.print(Text(name, style="bold"), highlight=False)
        print_fusions(console, one.plan)
        _print_shortfall(console, one)
        console.print()
    print_parity(console, done.report, everything=False)
    console.print(f"\nweights: {size_text(done.weights)}, weights.safetensors", highlight=False)
    console.print(f"bundle: {done.bundle}", highlight=False)


def print_method_fusions(console: Console, plans: Mapping[str, Plan]) -> None:
    """Prints the fusions of each method."""
    for number, (name, plan) in enumerate(plans.items()):
        console.print(Text(f"\n{name}" if number else name, style="bold"), highlight=False)
        print_fusions(console, plan)


def _print_shortfall(console: Console, conversion: Conversion) -> None:
    """Prints what is missing from a conversion: omitted targets with the reasons, runtime limits, and cases not run."""
    lines = [f"{left.target} was left out ({left.cause}): {left.reason}" for left in conversion.left_out]
    limits: dict[tuple[str, str], list[Limit]] = {}
    for limit in conversion.limits:
        limits.setdefault((limit.target, limit.case), []).append(limit)
    for (target, case), of in limits.items():
        names = ", ".join(limit.output for limit in of)
        lines.append(f"limit of {target}: case {case}, output {names}: {of[0].reason}")
    lines += [*error_lines(conversion.report), *_unproved(conversion.report)]
    if lines:
        console.print()
    for line in lines:
        console.print(line, highlight=False, markup=False)


def worst_rows(report: Report) -> dict[str, tuple[bool, float]]:
    """Returns for each target, by name, whether all its parity rows pass, and its largest absolute error.

    The error is the maximum over the cases without special input values, or over all cases if there are no such cases.
    """
    from fuseconv.parity.report import telling

    worst: dict[str, tuple[bool, float]] = {}
    for target in dict.fromkeys(row.target for row in report.rows):
        rows = [row for row in report.rows if row.target == target]
        worst[target] = (all(row.ok for row in rows), max(row.row.max_abs for row in telling(rows)))
    return worst


def print_parity(console: Console, report: Report, *, everything: bool = False) -> None:
    """Prints one parity row per target, or every row with `everything`, and why rows fail.

    Without `everything`, prints only the first reason of each target.
    """
    columns = ("target", "case", "output", "parity", "max abs", "max rel", "rmse vs f64", "original's")
    table = Table(*columns, numbers=columns[4:])
    for row in report.rows if everything else report.by_target():
        one = row.row
        errors = (one.max_abs, one.max_rel, one.rmse_vs_fp64, one.rmse_original_vs_fp64)
        state = Text("limit", style="yellow") if row.limit and not one.ok else mark(one.ok)
        table.add(row.target, row.case, row.output, state, *(f"{error:.1e}" for error in errors))
    console.print(table)
    failing = sorted(
        (row for row in report.rows if not row.row.ok), key=lambda row: row.ok
    )  # limits of runtimes come last
    for row in failing if everything else {row.target: row for row in reversed(failing)}.values():
        said = "limit of " if row.limit else ""
        line = f"{said}{row.target}, {row.case}, {row.output}: {row.row.reason}"
        console.print(line, highlight=False, markup=False)
    for line in _unproved(report):
        console.print(line, highlight=False, markup=False)
    counts, more = report.counts(), "" if everything else "; -v shows each"
    targets = f"{counts['targets']} target{'s' if counts['targets'] != 1 else ''}"
    run = f"ran {counts['cases']} cases on {targets} and compared {counts['rows']} outputs{more}"
    console.print(f"\n{run}", highlight=False)


def _unproved(report: Report) -> list[str]:
    """Returns a line for each case that was not run, and for each output of which no number was compared."""
    uncompared = [
        f"output {name} is NaN or infinite everywhere, also in the original and in float64: no number was compared; "
        "give real inputs with --inputs, or a range with --input-range"
        for name in report.uncompared
    ]
    return [*(f"case {case} was not run: {why}" for case, why in report.untried.items()), *uncompared]


def print_matrix(console: Console, matrix: Matrix) -> None:
    """Prints a table with one row per target and one column per runtime, Python and C++.

    A cell shows the largest absolute error against the original, or "unavailable". Below the table, prints why cells
    are unavailable or fail.
    """
    table = Table(matrix.device, "Python", "C++")
    cells = {(cell.name, cell.runtime): cell for cell in matrix.cells}
    for name in dict.fromkeys(cell.name for cell in matrix.cells):
        table.add(name, *(_matrix_cell(cells[name, runtime]) for runtime in ("python", "cpp")))
    console.print(table)
    console.print("\neach cell: max abs error against the original", highlight=False)
    if matrix.program is not None:
        console.print(f"C++: {matrix.program}", highlight=False, markup=False)
    absent = [(f"{cell.name} in {_LANGUAGES[cell.runtime]}", cell.absent) for cell in matrix.cells]
    _print_reasons(console, "unavailable", [(name, error) for name, error in absent if error is not None])
    for cell in matrix.cells:
        for row in cell.rows:
            if not row.ok:
                where = f"{cell.name} in {_LANGUAGES[cell.runtime]}, {row.case}, {row.output}"
                console.print(f"\n{where}: {row.row.reason}", highlight=False, markup=False)


def print_abilities(console: Console, abilities: Sequence[Ability]) -> None:
    """Prints one row per target and one column per action, then the reason and fix of each unavailable action."""
    actions = list(dict.fromkeys(ability.action for ability in abilities))
    can = {(one.device, one.target, one.action): one for one in abilities}
    table = Table("device", "target", *(_ACTIONS[action] for action in actions))
    for device, target in dict.fromkeys((one.device, one.target) for one in abilities):
        marks = (mark(can[device, target, action].lacking is None, "no") for action in actions)
        table.add(device, target, *marks)
    console.print()
    console.print(table)
    lacking = [(f"{one.device} {one.target}, {_ACTIONS[one.action]}", one.lacking) for one in abilities]
    _print_reasons(console, "unavailable", [(name, error) for name, error in lacking if error is not None])


def _print_reasons(console: Console, title: str, reasons: Iterable[tuple[str, FuseconvError]]) -> None:
    """Prints each reason once, with the names of the cells to which it applies."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, error in reasons:
        groups.setdefault((error.what, error.fix), []).append(name)
    for (what, fix), names in groups.items():
        console.print(f"\n{title}: {'; '.join(names)}", highlight=False, markup=False)
        console.print(f"  {what}\n  fix: {fix}", highlight=False, markup=False)


_LANGUAGES = {"python": "Python", "cpp": "C++"}

_ACTIONS = {"convert": "convert", "python": "load in Python", "cpp": "load in C++"}


def _matrix_cell(cell: Cell) -> Text:
    """Returns the text of a cell: its state and largest absolute error, or "unavailable"."""
    if cell.ok is None:
        return Text("unavailable", style="dim")
    from fuseconv.parity.report import telling

    largest = max(row.row.max_abs for row in telling(cell.rows))
    return mark(cell.ok).append(f"  {largest:.1e}", style="default")


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Prints the name, stage and description of each rule."""
    table = Table("rule", "stage", "finds")
    for rule in rules:
        table.add(rule.name, rule.stage, rule.doc)
    console.print(table)


def print_rule(console: Console, rule: Rule) -> None:
    """Prints one rule as written in its file: the alternatives of its pattern, its conditions, and its replacement."""
    console.print(Text(rule.name, style="bold").append(f"  ({rule.stage})\n{rule.doc}\n", style="not bold"))
    match = rule.written.get("match", [])
    written = [match] if match and isinstance(match[0], str) else match
    for number, lines in enumerate(written):
        console.print("match" if number == 0 else "or", style="bold")
        for line in lines:
            console.print(f"    {line}", highlight=False, markup=False)
    if len(rule.alternatives) > len(written):
        console.print(f"    ({len(rule.alternatives)} alternatives; --json has each)", highlight=False, markup=False)
    for title in ("where", "replace"):
        texts = rule.written.get(title, [])
        if texts:
            console.print(title, style="bold")
        for text in texts:
            console.print(f"    {text}", highlight=False, markup=False)


def print_checks(console: Console, checks: Sequence[CheckRow]) -> None:
    """Prints one row per check of a rule, and then the number of rules with each result."""
    from fuseconv.proof.check_row import summary

    table = Table("", "rule", "example", "result")
    styles = {"wrong": "bold red", "not run": "yellow"}
    for check in checks:
        said = "FAIL" if check.verdict == "wrong" else check.verdict
        table.add(Text(said, style=styles.get(check.verdict, "green")), check.rule, check.check, check.detail)
    console.print(table)
    found = summary(checks)
    rules = "1 rule" if found.rules == 1 else f"{found.rules} rules"
    console.print(
        f"\n{rules}: {found.proved} proved by algebra on every example, {found.partly} on some, "
        f"{found.tried} tested numerically only, {found.unchecked} not checked, {found.wrong} wrong; "
        f"{found.draws} random draws",
        highlight=False,
    )


def print_demo(console: Console, conversion: Conversion, embedded: Sequence[Embedded]) -> None:
    """Prints the table of the demonstration, the fusions, and the next steps."""
    worst, sizes = worst_rows(conversion.report), {one.target: one.size for one in conversion.written}
    eager = next(one for one in embedded if one.target == "eager")
    numbers = ("size", "max error", "ms per batch", "speed", "cosine")
    table = Table("target", "size", "parity", "max error", "ms per batch", "speed", "cosine", numbers=numbers)
    for one in embedded:
        speed = f"{eager.milliseconds / one.milliseconds:.2f}x"
        cells: tuple[str | Text, ...] = (
            ("", "", "") if one is eager else _parity_cells(worst[one.target], sizes[one.target])
        )
        table.add(one.target, *cells, f"{one.milliseconds:.1f}", speed, f"{one.cosine:.9f}")
    console.print(table)
    console.print(
        "\nspeed and cosine similarity: against the original model in eager PyTorch, on one batch of five sentences\n"
    )
    print_fusions(console, conversion.plan)
    _print_shortfall(console, conversion)
    console.print(f"\nThe bundle is in {conversion.bundle}. Load it anywhere that has torch and fuseconv:\n")
    console.print(f"    import fuseconv\n    model = fuseconv.load({str(conversion.bundle)!r})", highlight=False)
    console.print("    hidden, pooled = model(input_ids, attention_mask, token_type_ids)", highlight=False)


def _parity_cells(worst: tuple[bool, float], size: int) -> tuple[str, Text, str]:
    ok, max_abs = worst
    return size_text(size), mark(ok), f"{max_abs:.1e}"


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Prints the findings about a machine or a bundle, with a fix for each failed check."""
    table = Table("", "what", "found", "fix")
    for finding in findings:
        state = mark(finding.ok) if finding.ok or finding.needed else Text("no", style="yellow")
        table.add(state, finding.name, finding.found, "" if finding.ok else finding.fix)
    console.print(table)


def print_pairs(console: Console, pairs: Mapping[str, object]) -> None:
    """Prints names and values in two columns."""
    table = Table("", "")
    table.show_header = False
    for name, value in pairs.items():
        table.add(name, str(value))
    console.print(table)

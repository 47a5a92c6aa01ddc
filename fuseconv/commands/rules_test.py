"""`fuseconv rules test`: shows where the rules of a file apply in a model, and repeats this after each save."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.commands import streams
from fuseconv.commands.completion import PATH
from fuseconv.commands.options import existing, model_argument, model_options, reading
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import FuseconvError, ParityError, UsageError, printable
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed

if TYPE_CHECKING:
    from fuseconv.matching.explanation import Explained
    from fuseconv.pipeline.rule_test import Tested

MOST_REASONS = 3
"""The maximum number of misses that are shown per rule."""

INTERVAL = 0.3
"""The polling interval for changed files, in seconds."""


@click.command(cls=Configured, short_help="Show where a rule file applies in a model, after every save.")
@click.argument("file", type=PATH, callback=existing)
@model_argument
@click.option(
    "--once", is_flag=True, help="Test once, and exit with 1 unless every rule of the file applies somewhere."
)
@model_options
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object. Needs --once.")
def test(file: Path, model: Path, once: bool, as_json: bool, **source: Any) -> Outcome:
    """Show where the rules of FILE apply in MODEL, and where not and why, after each save until Ctrl-C.

    Rules of included files are applied too, but only the rules written in FILE are shown. MODEL is read once.
    """
    options = reading(**source)
    if as_json and not once:
        raise UsageError("--json needs --once: it prints only one result", where="--json", fix="add --once")
    from fuseconv.rulebook.own_rules import load_rules

    known = load_rules(file) if once else None  # reports an error in the file before the import of torch

    keep_freed()
    with imports():
        from fuseconv.pipeline.rule_test import RuleTest, watched

    tester = RuleTest(model, options, shown)
    if once:
        return _outcome(tester.run(file, known), file)
    with suppress(KeyboardInterrupt):  # the user ends the loop with Ctrl-C
        for _ in changes(lambda: _stamps(watched(file))):
            streams.say(_text(lambda: tester.run(file)))
    return Outcome({}, lambda _: None, quiet=True)


def changes(stamps: Callable[[], object]) -> Iterator[None]:
    """Yields once immediately, and then each time that `stamps` returns a different value. Polls every `INTERVAL`."""
    before = stamps()
    yield
    while True:
        time.sleep(INTERVAL)
        if (now := stamps()) != before:
            before = now
            yield


def _stamps(files: tuple[Path, ...]) -> list[tuple[str, int, int]]:
    """Returns the path, modification time in ns and size in bytes of each file. Skips files that do not exist.

    A file may not exist for a moment while an editor replaces it.
    """
    found = [(str(file), file.stat()) for file in files if file.exists()]
    return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in found]


def _text(run: Callable[[], Tested]) -> str:
    """Runs a test and returns its result as text. An error in the file becomes text too, so that watching continues."""
    try:
        lines = [line for rule in run().rules for line in lines_of(rule)]
    except FuseconvError as error:
        lines = [f"error: {error}"]
    return "\n".join([time.strftime("%H:%M:%S"), *(f"  {printable(line)}" for line in lines)])


def lines_of(rule: Explained) -> list[str]:
    """Returns lines that show where a rule matches, and where and why it does not.

    Misses that differ only in their layer share a line. At most `MOST_REASONS` reasons are shown.
    """
    from fuseconv.matching.explanation import alike

    count = len(rule.applied)
    places = f" at {', '.join(one.nodes[-1] for one in rule.applied)}" if count else ""
    lines = [f"{rule.rule}: {count} {'hit' if count == 1 else 'hits'}{places}"]
    groups = alike([*rule.rejected, *rule.near_misses])
    for miss, times in groups[:MOST_REASONS]:
        more = f" and {times - 1} like it" if times > 1 else ""
        lines.append(f"  missed at {miss.node}{more}: {miss.reason}")
        if miss.where:
            lines.append(f"    model  {miss.where}")
    if len(groups) > MOST_REASONS:
        lines.append(f"  and {len(groups) - MOST_REASONS} other reasons (`fuseconv explain --all` shows them)")
    return lines


def _outcome(tested: Tested, file: Path) -> Outcome:
    """Returns the result of one test, with an error if a rule of the file applies nowhere in the model."""
    error = None
    if tested.missed:
        names = ", ".join(rule.rule for rule in tested.missed)
        what = f"{len(tested.missed)} of {len(tested.rules)} rules apply nowhere in the model: {names}"
        error = ParityError(what, where=str(file), fix="see the reasons above, or `fuseconv explain --all`")
    lines = [line for rule in tested.rules for line in lines_of(rule)]
    result = {"rules": [asdict(rule) for rule in tested.rules]}
    return Outcome(result, lambda console: console.print("\n".join(lines), highlight=False, markup=False), error)

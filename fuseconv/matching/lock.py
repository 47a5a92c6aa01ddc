"""fuseconv.lock: the expected number of matches of a conversion, per rule and per module of the model.

`convert --lock` writes the file, which is kept under version control, and `convert --frozen` compares a conversion with
the file. If a change of the model, the rules or torch loses a fusion, the conversion fails instead of silently
producing a slower model. One file holds the entries of all bundles of a project. See docs/adr/0004-lock.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fuseconv.bundle.staging import locked
from fuseconv.bundle.tuned import Tuned
from fuseconv.bundle.whole_file import write_whole
from fuseconv.errors import FileError, FrozenError, RuleError
from fuseconv.matching.steps import Choice, Form, Forms, Plan, Step
from fuseconv.program.captured import Program
from fuseconv.rulebook.json_text import pointer_of, read_json
from fuseconv.untrusted.files import leads_somewhere

NAME = "fuseconv.lock"

SCHEMA = 1
"""The version of fuseconv.lock."""

ROOT = "."
"""The module path that stands for the whole model."""

MatchCounts = dict[str, dict[str, int]]
"""Maps each rule name and module path to the number of matches of the rule in the module."""


_TABLES = ("bundles", "chosen", "tactics", "forms")

Tactics = dict[str, dict[str, dict[str, dict[str, float]]]]
"""The `problems` of a bundle's tuning.json."""


class Chosen(BaseModel):
    """The measurements of one bundle: the times of its targets, and for each target a choice per class of matches."""

    model_config = ConfigDict(extra="forbid")

    tuned: Tuned
    choices: dict[str, dict[str, Choice]]


class Lock(BaseModel):
    """The contents of the file: for each entry, the matches, and the measured choices, tactics and forms.

    An entry is a bundle, under the name of its folder, or a method of a bundle, under `BUNDLE/METHOD`.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_: int = Field(default=SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    bundles: dict[str, dict[str, dict[str, int]]] = {}
    chosen: dict[str, Chosen] = {}
    tactics: dict[str, Tactics] = {}
    forms: dict[str, dict[str, Form]] = {}


@dataclass(frozen=True)
class Change:
    """A difference between the plan and the lock: the number of matches of one rule in one module, with the reason."""

    rule: str
    module: str
    locked: int
    found: int
    reason: str

    def __str__(self) -> str:
        sign = "-" if self.found < self.locked else "+"
        return f"{sign} {self.rule} at {self.module}: {self.locked} locked, {self.found} found: {self.reason}"


def count_matches(plan: Plan, program: Program) -> MatchCounts:
    """Returns the number of matches per rule and module that insert an op. Matches that only remove ops do not count.

    Args:
        plan: the plan, whose executed steps are counted.
        program: the captured program, which records the module of each node.
    """
    modules = _modules(program)
    found: MatchCounts = {}
    for step in plan.applied:
        if any("(" in line for line in step.replace):
            of_rule = found.setdefault(step.rule, {})
            module = _module_of(step, modules)
            of_rule[module] = of_rule.get(module, 0) + 1
    return {rule: dict(sorted(of_rule.items())) for rule, of_rule in sorted(found.items())}


def read_lock(path: Path) -> Lock:
    """Reads and validates fuseconv.lock.

    Raises:
        FileError: the file does not exist.
        RuleError: the file is not a valid lock. The message contains the position.
    """
    if not leads_somewhere(path):
        raise FileError(f"there is no {path.name}", where=str(path), fix="write it with `fuseconv convert --lock`")
    document = read_json(path, RuleError)
    try:
        return Lock.model_validate(document.value)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        where = document.where(pointer_of(*error["loc"]))
        what = f"the lock file is not valid: {error['msg'][:1].lower()}{error['msg'][1:]}"
        raise RuleError(what, where=where, fix="rewrite it with `fuseconv convert --lock`") from None


def write_lock(
    path: Path,
    bundle: str,
    found: MatchCounts,
    chosen: Chosen | None = None,
    tactics: Tactics | None = None,
    forms: Forms | None = None,
) -> None:
    """Writes the matches and the measured choices of a bundle to the lock, and keeps the entries of other bundles.

    Args:
        path: the lock file, which is created if it does not exist.
        bundle: the name of the bundle, under which the lock stores its entry.
        found: the matches to record: their number by rule and module.
        chosen: the times of the targets and the choice per class of matches. None if nothing was measured.
        tactics: the `problems` of the bundle's tuning.json, or None.
        forms: the forms that the search chose, or None.

    Raises:
        RuleError: the existing file is not a lock.
        FileError: the file cannot be written.
    """
    entries: dict[str, Any] = {"bundles": found, "chosen": chosen, "tactics": tactics, "forms": forms}
    _change(path, lambda lock: {name: {**getattr(lock, name), bundle: entries[name]} for name in _TABLES})


def _change(path: Path, change: Callable[[Lock], Mapping[str, Mapping[str, Any]]]) -> None:
    """Writes the tables that `change` makes of the lock. No other process changes the lock in between."""
    try:
        with locked(path.absolute().parent):
            lock = read_lock(path) if leads_somewhere(path) else Lock()
            write_whole(path, _text(lock, change(lock)).encode())
    except OSError as error:
        raise FileError.unwritable(f"{path.name} cannot be written", error, path) from error


def _text(lock: Lock, tables: Mapping[str, Mapping[str, Any]]) -> str:
    # A bundle without matches keeps an empty entry.
    sorted_ = {
        name: {key: table[key] for key in sorted(table) if table[key] or name == "bundles"}
        for name, table in tables.items()
    }
    empty = {name for name in ("chosen", "tactics", "forms") if not sorted_[name]}
    return lock.model_copy(update=sorted_).model_dump_json(by_alias=True, indent=1, exclude=empty) + "\n"


def method_entry(bundle: str, method: str) -> str:
    """Returns the name of the entry of a method of a bundle."""
    return f"{bundle}/{method}"


def write_methods(path: Path, bundle: str, other: Path) -> None:
    """Writes the entries of a bundle's methods, which another lock holds, and drops those of its former methods.

    Args:
        path: the lock file, which is created if it does not exist.
        bundle: the name of the bundle.
        other: the lock with an entry per method.

    Raises:
        RuleError: a file is not a lock.
        FileError: the file cannot be written.
    """
    new, prefix = read_lock(other), method_entry(bundle, "")
    _change(
        path,
        lambda lock: {
            name: {key: entry for key, entry in getattr(lock, name).items() if not key.startswith(prefix)}
            | getattr(new, name)
            for name in _TABLES
        },
    )


def check_methods(path: Path, bundle: str, methods: Collection[str]) -> None:
    """Checks that a lock has no entry for a method of a bundle that is not converted.

    Raises:
        FrozenError: there is such an entry.
        FileError: the lock does not exist.
        RuleError: the file is not a valid lock.
    """
    prefix = method_entry(bundle, "")
    converted = {method_entry(bundle, method) for method in methods}
    for entry in read_lock(path).bundles:
        if entry.startswith(prefix) and entry not in converted:
            what = f"the lock has the method {entry.removeprefix(prefix)}, which is not converted"
            raise FrozenError(what, where=f"{path} ({pointer_of('bundles', entry)})", fix=METHODS)


def check_lock(path: Path, bundle: str, plan: Plan, program: Program, known: Collection[str]) -> None:
    """Checks that a plan has exactly the matches that the lock records for a bundle.

    Args:
        path: the lock file to compare with.
        bundle: the name of the bundle whose entry is compared with the plan.
        plan: the plan of the current conversion.
        program: the captured program, which records the module of each node.
        known: the names of the rules in use, to report rules that are missing.

    Raises:
        FrozenError: a match is missing or new, or the lock has no entry for the bundle. The message lists the changes
            with the reasons.
        FileError: the lock does not exist.
        RuleError: the file is not a valid lock.
    """
    lock = read_lock(path)
    if bundle not in lock.bundles:
        raise FrozenError(f"the lock has no entry for {bundle}", where=str(path), fix=LOCK)
    if changes := _changes(lock.bundles[bundle], plan, program, known):
        lost = sum(max(change.locked - change.found, 0) for change in changes)
        gained = sum(max(change.found - change.locked, 0) for change in changes)
        what = "\n".join(
            [f"the matches differ from the lock: {lost} lost, {gained} gained", *(f"  {change}" for change in changes)]
        )
        raise FrozenError(what, where=f"{path} ({pointer_of('bundles', bundle)})", fix=LOCK)


METHODS = "convert it too, or accept the methods without it with `fuseconv convert --lock`"

LOCK = "fix the model or the rules, or accept the new matches with `fuseconv convert --lock`"


def _changes(locked: MatchCounts, plan: Plan, program: Program, known: Collection[str]) -> list[Change]:
    found = count_matches(plan, program)
    pairs = {(rule, module) for table in (locked, found) for rule, modules in table.items() for module in modules}
    counts = {
        (rule, module): (locked.get(rule, {}).get(module, 0), found.get(rule, {}).get(module, 0))
        for rule, module in sorted(pairs)
    }
    gained = [(rule, module) for (rule, module), (before, after) in counts.items() if after > before]
    changes = []
    for (rule, module), (before, after) in counts.items():
        if after < before:
            changes.append(Change(rule, module, before, after, _reason(rule, module, plan, program, known, gained)))
        elif after > before:
            changes.append(Change(rule, module, before, after, "not in the lock, so losing it would go unnoticed"))
    return sorted(changes, key=lambda change: change.found - change.locked > 0)


def _reason(
    rule: str,
    module: str,
    plan: Plan,
    program: Program,
    known: Collection[str],
    gained: Iterable[tuple[str, str]],
) -> str:
    """Returns the reason why a rule has fewer matches in a module than the lock records.

    The reason names a disabled step, a rule that is not in use, a near miss, or another rule that now matches there.
    """
    modules = _modules(program)
    for number, step in enumerate(plan.steps):
        if step.rule == rule and not step.apply and _module_of(step, modules) == module:
            return f'step {number} of the plan has "apply": false'
    if rule not in known:
        return "the rule is not in use"
    for miss in plan.misses:
        if miss.rule == rule and _is_in(_module(miss.node, modules), module):
            return f"{miss.reason}{f' ({miss.where})' if miss.where else ''}"
    instead = [other for other, place in gained if _is_in(place, module) or _is_in(module, place)]
    return f"{instead[0]} matches there now" if instead else "no partial match in this module"


def _is_in(module: str, other: str) -> bool:
    return other in (ROOT, module) or module.startswith(f"{other}.")


def _modules(program: Program) -> Mapping[str, str]:
    """Returns the path of the innermost module that calls each node of a program, by node name."""
    nodes = program.exported.graph.nodes
    stacks = ((node.name, list((node.meta.get("nn_module_stack") or {}).values())) for node in nodes)
    return {name: (stack[-1][0] if stack else "") or ROOT for name, stack in stacks}


def _module(name: str, modules: Mapping[str, str]) -> str:
    """Returns the module of the node with this name. A node created by a step belongs to the replaced node's module."""
    name = name.partition("/")[0]
    if name not in modules:
        name = max((known for known in modules if name.endswith(f"_{known}")), key=len, default="")
    return modules.get(name, ROOT)


def _module_of(step: Step, modules: Mapping[str, str]) -> str:
    """Returns the path of the innermost module that contains all nodes matched by a step."""
    paths = [_module(name, modules).split(".") for name in step.nodes]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or ROOT

"""fuseconv.lock: the sites that a conversion is expected to have, by rule and by module of the model.

It is written by `convert --lock`, committed, and compared by `convert --frozen`: a fusion that is lost when the model,
the rules or torch change is an error then, not a slower model that nobody noticed. One file serves all conversions of
a project, by the names of their bundles. See docs/adr/0004-lock.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fuseconv.errors import FileError, FrozenError, RuleError
from fuseconv.matching.steps import Plan, Step
from fuseconv.program.captured import Program
from fuseconv.rulebook.json_text import pointer_of, read_json
from fuseconv.untrusted.files import leads_somewhere

NAME = "fuseconv.lock"

SCHEMA = 1
"""The version of fuseconv.lock."""

ROOT = "."
"""How the whole model is called among its modules."""

Sites = dict[str, dict[str, int]]
"""Rule to module path to number of sites."""


class Lock(BaseModel):
    """The file: for each bundle, by name, its sites."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_: int = Field(default=SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    bundles: dict[str, dict[str, dict[str, int]]] = {}


@dataclass(frozen=True)
class Change:
    """A rule that has another number of sites in a module than is locked, and why, as far as it can be said."""

    rule: str
    module: str
    locked: int
    found: int
    reason: str

    def __str__(self) -> str:
        sign = "-" if self.found < self.locked else "+"
        return f"{sign} {self.rule} at {self.module}: {self.locked} locked, {self.found} found: {self.reason}"


def sites(plan: Plan, program: Program) -> Sites:
    """Returns the sites of a plan that put an op in place; what a step only removes is nothing to be lost.

    Args:
        plan: what is executed.
        program: what was captured: it says which module a node is of.
    """
    modules = _modules(program)
    found: Sites = {}
    for step in plan.applied:
        if any("(" in line for line in step.replace):
            of_rule = found.setdefault(step.rule, {})
            module = _module_of(step, modules)
            of_rule[module] = of_rule.get(module, 0) + 1
    return {rule: dict(sorted(of_rule.items())) for rule, of_rule in sorted(found.items())}


def read_lock(path: Path) -> Lock:
    """Reads fuseconv.lock.

    Raises:
        FileError: there is none.
        RuleError: it is not one, with the place of what is wrong.
    """
    if not leads_somewhere(path):
        raise FileError(f"there is no {path.name}", where=str(path), fix="write it with `fuseconv convert --lock`")
    document = read_json(path, RuleError)
    try:
        return Lock.model_validate(document.value)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        where = document.where(pointer_of(*error["loc"]))
        what = f"not a valid lock file: {error['msg'][:1].lower()}{error['msg'][1:]}"
        raise RuleError(what, where=where, fix="rewrite it with `fuseconv convert --lock`") from None


def write_lock(path: Path, bundle: str, found: Sites) -> None:
    """Locks the sites of a bundle; those of others in the file stay.

    Raises:
        RuleError: the file is there and is not a lock.
        FileError: it cannot be written.
    """
    lock = read_lock(path) if leads_somewhere(path) else Lock()
    bundles = dict(sorted({**lock.bundles, bundle: found}.items()))
    text = lock.model_copy(update={"bundles": bundles}).model_dump_json(by_alias=True, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def check_lock(path: Path, bundle: str, plan: Plan, program: Program, known: Collection[str]) -> None:
    """Checks that a plan has the sites that are locked for a bundle, all and no other.

    Args:
        path: the lock.
        bundle: the bundle's name.
        plan: what is to be executed.
        program: what was captured.
        known: names of the rules that were asked for.

    Raises:
        FrozenError: sites are lost or gained; `changes` says which, and why.
        FileError: there is no lock.
        RuleError: it is not one.
    """
    lock = read_lock(path)
    if bundle not in lock.bundles:
        raise FrozenError(f"the lock has no entry for {bundle}", where=str(path), fix=_LOCK)
    if changes := _changes(lock.bundles[bundle], plan, program, known):
        lost = sum(max(change.locked - change.found, 0) for change in changes)
        gained = sum(max(change.found - change.locked, 0) for change in changes)
        what = "\n".join(
            [f"the matches differ from the lock: {lost} lost, {gained} gained", *(f"  {change}" for change in changes)]
        )
        raise FrozenError(what, where=f"{path} ({pointer_of('bundles', bundle)})", fix=_LOCK)


_LOCK = "fix the model or the rules, or accept the new matches with `fuseconv convert --lock`"


def _changes(locked: Sites, plan: Plan, program: Program, known: Collection[str]) -> list[Change]:
    found = sites(plan, program)
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
    """Returns why a site is lost: what the plan or its misses say of it, else what is there in its place."""
    modules = _modules(program)
    for number, step in enumerate(plan.steps):
        if step.rule == rule and not step.apply and _module_of(step, modules) == module:
            return f'step {number} of the plan has "apply": false'
    if rule not in known:
        return "the rule is not among the rules in use"
    for miss in plan.misses:
        if miss.rule == rule and _is_in(_module(miss.node, modules), module):
            return f"{miss.reason}{f' ({miss.where})' if miss.where else ''}"
    instead = [other for other, place in gained if _is_in(place, module) or _is_in(module, place)]
    return f"{instead[0]} matches there now" if instead else "nothing there comes close to a match"


def _is_in(module: str, other: str) -> bool:
    return other in (ROOT, module) or module.startswith(f"{other}.")


def _modules(program: Program) -> Mapping[str, str]:
    """Returns the module that each node of a program is called in."""
    nodes = program.exported.graph.nodes
    stacks = ((node.name, list((node.meta.get("nn_module_stack") or {}).values())) for node in nodes)
    return {name: (stack[-1][0] if stack else "") or ROOT for name, stack in stacks}


def _module(name: str, modules: Mapping[str, str]) -> str:
    """Returns the module of a value: of the node of that name, or of the one it was made in the place of."""
    name = name.partition("/")[0]
    if name not in modules:
        name = max((known for known in modules if name.endswith(f"_{known}")), key=len, default="")
    return modules.get(name, ROOT)


def _module_of(step: Step, modules: Mapping[str, str]) -> str:
    """Returns the innermost module that all the nodes of a step are in."""
    paths = [_module(name, modules).split(".") for name in step.nodes]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or ROOT

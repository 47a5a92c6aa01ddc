"""The plan as data: what is rewritten, in order, and what nearly was. `plan.json` is this, and may be edited by hand.

Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fuseconv.errors import FileError, RuleError
from fuseconv.rulebook.json_text import parse_json, pointer_of
from fuseconv.untrusted.files import read_plain

SCHEMA = 1
"""The version of plan.json."""

Binding = dict[str, Any]
"""What a name is bound to, under one key: {"node": name}, {"value": a JSON scalar}, {"items": [binding, ...]},
{"dtype": "f32"}, {"device": "cpu"}, {"layout": "strided"}, {"memory_format": "preserve_format"}, {"number": "inf"}."""


@dataclass(frozen=True)
class Step:
    """One rewrite, complete: to execute it takes no rule file.

    Attributes:
        rule: the rule's name.
        stage: the stage it ran in.
        nodes: names of the matched nodes, in the order they run.
        ops: what each of `nodes` calls; checked before the step is executed.
        bindings: what each capture of the rule is.
        results: pattern name to the name of the node it replaces.
        replace: the rule's SSA lines.
        strides: `any` where the values replaced may have other strides afterwards.
        draws: `any` where the values replaced are dropped at random, and other ones afterwards.
        literals: floats of the program that are taken for the rule's, each with the rule's, where the two differ by
            more than the dtype rounds; left out of plan.json where there are none.
        apply: whether it is executed; set to false by hand, the plan says what was left out.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rule: str
    stage: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    bindings: Mapping[str, Binding]
    results: Mapping[str, str]
    replace: tuple[str, ...]
    strides: Literal["same", "any"] = "same"
    draws: Literal["same", "any"] = "same"
    apply: bool = True
    literals: tuple[tuple[float, float], ...] = ()

    def reads(self) -> set[str]:
        """Returns the names of the values it needs: those it matches, and their operands."""
        return {*self.nodes, *_names(list(self.bindings.values()))}

    def makes(self, names: Collection[str]) -> bool:
        """Returns whether skipping this step changes or removes any of the named values."""
        places = {f"{name}/{self.rule}" for name in (*self.nodes, *self.results.values())}
        return any(name in self.nodes or name.rpartition("/")[0] in places for name in names)


@dataclass(frozen=True)
class Miss:
    """A site that is not one, and why.

    Attributes:
        rule: the rule that nearly matched.
        node: the node where its pattern was anchored.
        reason: one sentence.
        expected: what the rule asks for.
        found: what the program has.
        where: the model's source line, empty when the program does not carry it.
        differs: the first node that differs.
        matched: how many ops of the rule were found.
        ops: how many the rule has.
        refused: whether the rule fits there, and may not be applied.
        rejected: whether the rule applies there by all that it says, and computed something else when it was tried.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rule: str
    node: str
    reason: str
    expected: str
    found: str
    where: str
    differs: str = ""
    matched: int = 0
    ops: int = 0
    refused: bool = False
    rejected: bool = False


@dataclass(frozen=True)
class Plan:
    """What is rewritten, in the order it is executed, and what is not, with reasons."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    steps: tuple[Step, ...]
    misses: tuple[Miss, ...] = ()
    schema: int = field(default=SCHEMA)

    @property
    def rejected(self) -> tuple[Miss, ...]:
        """The sites at which a rule computed something else when it was tried."""
        return tuple(miss for miss in self.misses if miss.rejected)

    @property
    def applied(self) -> tuple[Step, ...]:
        """The steps that are executed."""
        return tuple(step for step in self.steps if step.apply)

    def drawing_the_same(self) -> Plan:
        """Returns the plan without the steps after which other numbers are drawn, and those that build on them."""
        out: list[Step] = []
        for step in self.steps:
            matched = [*step.nodes, *(name for name in step.reads() if "/" in name)]
            if step.draws == "any" or any(other.makes(matched) for other in out):
                out.append(step)
        return replace(self, steps=tuple(replace(step, apply=step.apply and step not in out) for step in self.steps))

    def counts(self) -> dict[str, int]:
        """Returns how many times each rule is applied, by name."""
        counts: dict[str, int] = {}
        for step in self.applied:
            counts[step.rule] = counts.get(step.rule, 0) + 1
        return dict(sorted(counts.items()))

    def to_json(self) -> str:
        """Returns plan.json's text; `from_json` reads it back."""
        value = asdict(self)
        for step in value["steps"]:
            if not step["literals"]:
                del step["literals"]
        return json.dumps({"schema": value.pop("schema"), **value}, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "plan.json") -> Plan:
        """Reads a plan.

        Raises:
            RuleError: the text is not JSON, not a plan, or of another version.
        """
        try:
            plan = _PLAN.validate_json(text)
        except ValidationError as problem:
            raise _not_a_plan(problem, text, where) from None
        if plan.schema != SCHEMA:
            fix = "regenerate it with this version of fuseconv"
            raise RuleError(f"the plan has schema {plan.schema}, but this version reads {SCHEMA}", where=where, fix=fix)
        return plan


_PLAN = TypeAdapter(Plan)

_FIELDS = {each.name for noun in (Plan, Step, Miss) for each in fields(noun)}


def _not_a_plan(problem: ValidationError, text: str, path: str) -> RuleError:
    """Returns the error with the place of what is wrong: file, line, column and pointer."""
    error = problem.errors(include_url=False)[0]
    try:
        document = parse_json(text, path, RuleError)
    except RuleError as syntax:
        return RuleError(f"not a plan: {syntax.what}", where=syntax.where, fix=syntax.fix)
    where, key = document.where(pointer_of(*error["loc"])), str(error["loc"][-1]) if error["loc"] else ""
    what, fix = f"{error['msg'][:1].lower()}{error['msg'][1:]}", "use the format that `fuseconv match` writes"
    if error["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        near = difflib.get_close_matches(key, _FIELDS, 1)
        what, fix = f"unknown field {key}", f"did you mean {near[0]}?" if near else "remove it"
    if error["type"] in {"missing", "missing_argument"}:
        what, fix = f"the field {key} is missing", "add it, or remove the whole entry"
    return RuleError(f"not a plan: {what}", where=where, fix=fix)


def _names(bindings: Any) -> Iterator[str]:
    for binding in bindings:
        match binding:
            case {"node": str() as name}:
                yield name
            case {"items": list() as items}:
                yield from _names(items)


def read_plan(path: Path) -> Plan:
    """Reads plan.json.

    Raises:
        FileError: the file cannot be read.
        RuleError: it is not a plan.
    """
    try:
        text = read_plain(path).decode("utf-8")
    except OSError as problem:
        raise FileError(
            f"cannot read the plan: {problem.strerror}", where=str(path), fix="give an existing file"
        ) from None
    except UnicodeDecodeError as problem:
        raise RuleError(
            f"not a plan: byte {problem.start} is not UTF-8", where=str(path), fix="save it as UTF-8"
        ) from None
    return Plan.from_json(text, str(path))

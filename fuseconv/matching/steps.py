"""The plan as data: the rewrites in order, and the near misses. `plan.json` stores a plan and may be edited by hand.

A step is one rewrite of the graph by a rule. A miss is a place where a rule matches only partly or is rejected.

This module does not import torch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fuseconv.errors import FileError, RuleError
from fuseconv.rulebook.json_text import parse_json, pointer_of
from fuseconv.untrusted.files import read_plain

SCHEMA = 1
"""The version of plan.json."""

Binding = dict[str, Any]
"""The value of a pattern variable: an object whose only key names the kind of value. One of {"node": name},
{"value": a JSON scalar}, {"items": [binding, ...]}, {"dtype": "f32"}, {"device": "cpu"}, {"layout": "strided"},
{"memory_format": "preserve_format"} and {"number": "inf"}."""


@dataclass(frozen=True)
class Choice:
    """Whether a match is replaced in one target, as decided by measurements at conversion.

    Attributes:
        applied: whether the match is replaced.
        fused_us: the time of a call of the model in microseconds with this match and all equal matches replaced.
        unfused_us: the time in microseconds without these replacements.
        noise_us: the uncertainty of the difference in microseconds.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    applied: bool
    fused_us: float
    unfused_us: float
    noise_us: float

    def __str__(self) -> str:
        return f"{self.fused_us:.1f} us fused, {self.unfused_us:.1f} us unfused, noise {self.noise_us:.1f} us"


@dataclass(frozen=True)
class Trial:
    """The figures of the numerical test that a match passed at conversion.

    Attributes:
        equal: whether the replacement gave the same results as the matched ops on the values that occur in the model.
        rmse: the root-mean-square error of the replacement against float64 on these values. None if it was not
            measured, because the results are equal or depend on random numbers.
        rmse_matched: the root-mean-square error of the matched ops on these values, or None.
        draws: the number of sets of adversarial operands on which the replacement passed as well.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    equal: bool
    rmse: float | None
    rmse_matched: float | None
    draws: int


@dataclass(frozen=True)
class Step:
    """One rewrite of the graph by a rule. A step is self-contained: it can be executed without the rule file.

    Attributes:
        rule: the name of the rule that matched.
        stage: the stage in which the rule is applied.
        nodes: the names of the matched nodes, in execution order.
        ops: the op of each node in `nodes`, which is checked before the step is executed.
        bindings: the value of each pattern variable that the replacement uses.
        results: maps each replaced name of the pattern to the name of the node that it replaces.
        replace: the SSA lines of the replacement.
        strides: `any` if the strides of the replaced values may change; `restored` if outputs of the program whose
            strides change are copied to memory with their former strides.
        draws: `any` if the replaced values depend on random numbers and the replacement may use other random numbers.
        literals: pairs of a float of the program and the float of the rule that it matches, if they differ by more than
            the rounding error of the dtype. Omitted from plan.json if empty.
        apply: whether the step is executed. Edit plan.json and set it to false to disable the step.
        choices: maps targets to the measured choices. In a target that is not listed, the step is executed.
            Omitted from plan.json if empty.
        trial: the figures of the numerical test. None, and omitted from plan.json, if the match was not tested. Steps
            that differ in it alone are equal.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rule: str
    stage: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    bindings: Mapping[str, Binding]
    results: Mapping[str, str]
    replace: tuple[str, ...]
    strides: Literal["same", "any", "restored"] = "same"
    draws: Literal["same", "any"] = "same"
    apply: bool = True
    literals: tuple[tuple[float, float], ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    trial: Trial | None = field(default=None, compare=False, repr=False)

    def applies(self, target: str) -> bool:
        """Returns whether the step is executed in a target."""
        return self.apply and (target not in self.choices or self.choices[target].applied)

    def left_alone(self) -> dict[str, Choice]:
        """Returns the choices for the targets in which the step, as measured, makes the model no faster."""
        return {target: choice for target, choice in self.choices.items() if not choice.applied}

    def reads(self) -> set[str]:
        """Returns the names of the nodes that the step refers to: the matched nodes and the captured operands."""
        return {*self.nodes, *_names(list(self.bindings.values()))}

    def makes(self, names: Collection[str]) -> bool:
        """Returns whether skipping this step changes or removes any of the named values."""
        places = {f"{name}/{self.rule}" for name in (*self.nodes, *self.results.values())}
        return any(name in self.nodes or name.rpartition("/")[0] in places for name in names)


@dataclass(frozen=True)
class Form:
    """The computation chosen for all regions with the same text: the same ops on operands of the same types.

    Attributes:
        lines: the lines that replace the ops of a region. Empty if the regions are left unchanged.
        choices: maps each target to the measured times of a call of the model with and without this form. Empty while
            the form is being timed.
        notes: one sentence per other form that says what is known about it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lines: tuple[str, ...]
    choices: Mapping[str, Choice] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Forms = Mapping[str, Form]
"""Maps the text of a region, which identifies its kind, to the form that was chosen; see regions.py."""

NON_FINITE: Final = "non-finite"
"""The `--allow` name for forms whose results may differ if inputs are NaN or infinite or if values overflow."""

SEARCH: Final = "search"
"""The rule name that is recorded for the steps that replace a region with another form."""


@dataclass(frozen=True)
class Miss:
    """A place where a rule does not apply, and the reason.

    Attributes:
        rule: the name of the rule.
        node: the node at which the pattern was anchored.
        reason: why the rule does not apply, in one sentence.
        expected: what the rule requires.
        found: what the program has.
        where: the source line of the model. Empty if the program does not record it.
        differs: the first node that differs.
        matched: the number of ops of the rule that were found.
        ops: the number of ops of the rule.
        refused: whether the whole pattern matches but may not be replaced.
        rejected: whether the rule applies but its numerical test failed.
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
    """The rewrites in execution order, and the misses with their reasons."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    steps: tuple[Step, ...]
    misses: tuple[Miss, ...] = ()
    schema: int = field(default=SCHEMA)

    @property
    def rejected(self) -> tuple[Miss, ...]:
        """The misses for matches whose numerical test failed."""
        return tuple(miss for miss in self.misses if miss.rejected)

    @property
    def applied(self) -> tuple[Step, ...]:
        """The steps that are executed."""
        return tuple(step for step in self.steps if step.apply)

    def first(self, count: int) -> Plan:
        """Returns the plan with only the first steps that are executed."""
        return replace(self, steps=self.applied[:count])

    def of(self, target: str) -> Plan:
        """Returns the plan for one target. Steps that are not executed in this target are disabled."""
        steps = (step if step.applies(target) == step.apply else replace(step, apply=False) for step in self.steps)
        return replace(self, steps=tuple(steps))

    def untested(self) -> Plan:
        """Returns the plan without the figures of numerical tests, which hold only for unchanged steps and weights."""
        return replace(self, steps=tuple(replace(step, trial=None) for step in self.steps))

    def drawing_the_same(self) -> Plan:
        """Returns the plan without the steps that change random numbers, and without the steps that depend on them.

        These steps are disabled, not removed.
        """
        out: list[Step] = []
        for step in self.steps:
            matched = [*step.nodes, *(name for name in step.reads() if "/" in name)]
            if step.draws == "any" or any(other.makes(matched) for other in out):
                out.append(step)
        return replace(self, steps=tuple(replace(step, apply=step.apply and step not in out) for step in self.steps))

    def counts(self, targets: Collection[str] = ()) -> dict[str, int]:
        """Returns the number of executed steps per rule. If targets are given, counts steps executed in any of them."""
        counts: dict[str, int] = {}
        for step in self.applied:
            if not targets or any(map(step.applies, targets)):
                counts[step.rule] = counts.get(step.rule, 0) + 1
        return dict(sorted(counts.items()))

    def to_json(self) -> str:
        """Returns the text of plan.json, which `from_json` parses."""
        value = asdict(self)
        for step in value["steps"]:
            for name in ("literals", "choices", "trial"):
                if not step[name]:
                    del step[name]
        return json.dumps({"schema": value.pop("schema"), **value}, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "plan.json") -> Plan:
        """Parses the text of plan.json. `where` names the file in errors.

        Raises:
            RuleError: the text is not JSON, is not a plan, or uses another schema version.
        """
        try:
            plan = _PLAN.validate_json(text)
        except ValidationError as problem:
            raise _not_a_plan(problem, text, where) from None
        if plan.schema != SCHEMA:
            fix = "regenerate the plan with this version of fuseconv"
            raise RuleError(
                f"the plan has schema {plan.schema}, but this version of fuseconv reads schema {SCHEMA}",
                where=where,
                fix=fix,
            )
        return plan


_PLAN = TypeAdapter(Plan)

_FIELDS = {each.name for noun in (Plan, Step, Trial, Miss, Choice) for each in fields(noun)}


def _not_a_plan(problem: ValidationError, text: str, path: str) -> RuleError:
    """Returns the error for an invalid plan, with the file, line, column and JSON pointer."""
    error = problem.errors(include_url=False)[0]
    try:
        document = parse_json(text, path, RuleError)
    except RuleError as syntax:
        return RuleError(f"the file is not a plan: {syntax.what}", where=syntax.where, fix=syntax.fix)
    where, key = document.where(pointer_of(*error["loc"])), str(error["loc"][-1]) if error["loc"] else ""
    what, fix = f"{error['msg'][:1].lower()}{error['msg'][1:]}", "use the format that `fuseconv match` writes"
    if error["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        near = difflib.get_close_matches(key, _FIELDS, 1)
        what, fix = f"unknown field {key}", f"did you mean {near[0]}?" if near else "remove the field"
    if error["type"] in {"missing", "missing_argument"}:
        what, fix = f"the field {key} is missing", "add the field, or remove the whole entry"
    return RuleError(f"the file is not a plan: {what}", where=where, fix=fix)


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
        RuleError: the file is not a plan.
    """
    try:
        text = read_plain(path).decode("utf-8")
    except OSError as problem:
        raise FileError(
            f"the plan cannot be read: {problem.strerror}", where=str(path), fix="give an existing file"
        ) from None
    except UnicodeDecodeError as problem:
        raise RuleError(
            f"the file is not a plan: byte {problem.start} is not UTF-8", where=str(path), fix="save the file as UTF-8"
        ) from None
    return Plan.from_json(text, str(path))

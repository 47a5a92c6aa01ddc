"""The plan as data: what is rewritten, in order, and what nearly was. `plan.json` is this, and may be edited by hand.

Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fuseconv.errors import FileError, RuleError

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

    def counts(self) -> dict[str, int]:
        """Returns how many times each rule is applied, by name."""
        counts: dict[str, int] = {}
        for step in self.steps:
            counts[step.rule] = counts.get(step.rule, 0) + 1
        return dict(sorted(counts.items()))

    def to_json(self) -> str:
        """Returns plan.json's text; `from_json` reads it back."""
        value = asdict(self)
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
            error = problem.errors(include_url=False)[0]
            pointer = "".join(f"/{key}" for key in error["loc"]) or "/"
            raise RuleError(
                f"not a plan: {error['msg']}", where=f"{where} ({pointer})", fix="write it with `fuseconv match`"
            ) from None
        if plan.schema != SCHEMA:
            fix = "make it again with this version of fuseconv"
            raise RuleError(f"the plan has schema {plan.schema}, this version reads {SCHEMA}", where=where, fix=fix)
        return plan


_PLAN = TypeAdapter(Plan)


def read_plan(path: Path) -> Plan:
    """Reads plan.json.

    Raises:
        FileError: the file cannot be read.
        RuleError: it is not a plan.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise FileError(
            f"cannot read the plan: {problem.strerror}", where=str(path), fix="give an existing file"
        ) from None
    except UnicodeDecodeError as problem:
        raise RuleError(
            f"not a plan: byte {problem.start} is not UTF-8", where=str(path), fix="save it as UTF-8"
        ) from None
    return Plan.from_json(text, str(path))

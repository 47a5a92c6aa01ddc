"""A rule as data, checked without torch and without running anything.

`entry.py` has the form in which files write it. What needs torch (that an op exists, that its arguments fit) is checked
where patterns are compiled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from fuseconv.errors import RuleError
from fuseconv.rulebook.rule_names import NamesError, check_names
from fuseconv.rulebook.rule_text import Call, Condition, Line, RuleTextError, parse_condition, parse_line

_Parsed = TypeVar("_Parsed")

Stage = Literal["canonical", "structure", "fuse"]
STAGES: tuple[Stage, ...] = ("canonical", "structure", "fuse")
"""The stages, in the order they run."""

_Lines = Annotated[list[str], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Domain:
    """The floating values that a rule holds for, and is tried on.

    Attributes:
        largest: the largest magnitude of a finite one; None for any.
        finite: whether it does not hold for infinite ones.
    """

    largest: float | None = None
    finite: bool = False


class MissExample(BaseModel):
    """A program the rule must leave alone, and a part of the reason it must give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1)
    program: _Lines


class Examples(BaseModel):
    """Programs that show the rule: `fuseconv rules check` runs them, against eager PyTorch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hit: list[_Lines] = []
    miss: list[MissExample] = []


class RuleFields(BaseModel):
    """The fields of a rule, as they are written and as they are meant.

    One rewrite: where `match` is found and `where` is proved, `replace` computes the same.

    Attributes:
        name: unique among the rules of a run.
        stage: canonical rules run first, to a fixpoint, then structure, then fuse.
        doc: what it finds and why that is worth it, in a sentence or two.
        match: SSA lines, or a list of alternatives. A name no line binds is a capture.
        finds: in the place of `match` and `replace`, what is looked for in the graph as a whole: `attention`, whatever
            is done to its scores; `constants`, values that depend on no input, which are computed at conversion;
            `duplicates`, ops called twice on the same; `in-place`, elementwise ops
            that write memory which nothing else sees.
        merge: names of captures; all sites that agree on them are replaced together.
        where: conditions on the names, of the functions in predicates.py.
        replace: SSA lines; each name of `match` they bind is the value replaced. No line: the match is deleted.
        examples: programs it changes and programs it must leave alone.
        strides: whether what is replaced may have `any` strides afterwards, if all its readers take them.
        draws: whether what is replaced is dropped at random and may draw `any` numbers of that distribution afterwards;
            else it draws the `same`.
        targets: the only targets it is for; absent, all. Where others are written too, its sites are left as they are.
        devices: the only devices it is for; absent, all.
        allow: it changes the numbers, and runs only with `--allow` of this name.
        largest: the largest magnitude of a finite floating value for which it holds, and is tried; absent, any.
        finite: whether it holds for finite floating values alone, and is not tried on infinite ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    stage: Stage
    doc: str = Field(min_length=1)
    match: Annotated[list[str] | list[_Lines], Field(max_length=64)] = []
    finds: Literal["attention", "constants", "duplicates", "in-place"] | None = None
    merge: list[str] = []
    where: list[str] = []
    replace: list[str] = []
    strides: Literal["same", "any"] = "same"
    draws: Literal["same", "any"] = "same"
    examples: Examples = Examples()
    targets: (
        Annotated[list[Literal["torchscript", "export", "aoti", "onnx", "onnx-plugin"]], Field(min_length=1)] | None
    ) = None
    devices: Annotated[list[Literal["cpu", "cuda"]], Field(min_length=1)] | None = None
    allow: str | None = Field(default=None, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")

    largest: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    finite: bool = False


class Rule(RuleFields):
    """One rewrite: where `match` is found and `where` is proved, `replace` computes the same; see `RuleFields`."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)

    _where: Callable[[str, int], str] | None = PrivateAttr(default=None)
    _family: str = PrivateAttr(default="")
    _ops: tuple[Path, ...] = PrivateAttr(default=())
    _written: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Rule:
        try:
            if self.finds is None:
                check_names(self.alternatives, self.replacement, self.conditions, self.pointer_of_line, self.merge)
            elif self.match or self.where or self.replace or self.merge:
                fix = "remove the other fields"
                raise NamesError("/finds", "`finds` cannot be combined with match, where, replace or merge", fix)
        except NamesError as wrong:
            context = {"what": wrong.what, "fix": wrong.fix, "pointer": wrong.pointer, "column": wrong.column}
            raise PydanticCustomError("rule_text", "{what}", context) from None
        return self

    @cached_property
    def alternatives(self) -> tuple[tuple[Line, ...], ...]:
        """The alternatives of `match`, parsed."""
        return tuple(
            tuple(_parsed(parse_line, text, self.pointer_of_line(at, line)) for line, text in enumerate(lines))
            for at, lines in enumerate(self.texts)
        )

    @cached_property
    def replacement(self) -> tuple[Line, ...]:
        """The lines of `replace`, parsed."""
        return tuple(_parsed(parse_line, text, f"/replace/{at}") for at, text in enumerate(self.replace))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of `where`, parsed."""
        return tuple(_parsed(parse_condition, text, f"/where/{at}") for at, text in enumerate(self.where))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of `match` that `replace` binds: the values replaced, in the order of `replace`."""
        if not self.match:
            return ()
        bound = {name for line in self.alternatives[0] if isinstance(line.value, Call) for name in line.targets}
        return tuple(name for line in self.replacement for name in line.targets if name in bound and name != "_")

    @cached_property
    def sha256(self) -> str:
        """The hash of what the rule does: its words and examples are left out."""
        content = self.model_dump(exclude={"doc", "examples", "largest", "finite"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def pointer_of_line(self, alternative: int, line: int) -> str:
        """Returns the JSON pointer, inside the rule, of a line of `match`."""
        return f"/match/{line}" if self.match and isinstance(self.match[0], str) else f"/match/{alternative}/{line}"

    def locate(self, pointer: str, column: int = 0) -> str:
        """Returns where a part of the rule stands: in its file, or by its name when it was made in memory."""
        return self._where(pointer, column) if self._where is not None else f"rule {self.name} ({pointer})"

    @property
    def domain(self) -> Domain:
        """The values that it holds for."""
        return Domain(self.largest, self.finite)

    @property
    def family(self) -> str:
        """The file it is of, without its suffix, from the folder of the file that includes it; empty for none."""
        return self._family

    @property
    def ops(self) -> tuple[Path, ...]:
        """The Python files that register the ops it names, where its file brings some."""
        return self._ops

    @property
    def written(self) -> Mapping[str, Any]:
        """Its fields as its file says them, which may be shorter; of a rule made in memory its own."""
        return self._written or self.model_dump(exclude_none=True)

    def placed(
        self, where: Callable[[str, int], str], family: str, ops: tuple[Path, ...], written: Mapping[str, Any]
    ) -> Rule:
        """Returns the rule knowing its place in a file, for errors found later, its family, its ops and its text."""
        rule = self.model_copy()
        rule._where, rule._family, rule._ops, rule._written = where, family, ops, written
        return rule

    @property
    def texts(self) -> Iterator[Sequence[str]]:
        """The alternatives of `match`, as they are written."""
        if not self.match:
            return
        if isinstance(self.match[0], str):
            yield [text for text in self.match if isinstance(text, str)]
        else:
            yield from (lines for lines in self.match if isinstance(lines, list))


def refuse(rule: Rule, pointer: str, what: str, fix: str) -> RuleError:
    """Returns the error for a part of a rule, with its place in the file."""
    return RuleError(f"rule {rule.name}: {what}", where=rule.locate(pointer), fix=fix)


def _parsed(parse: Callable[[str], _Parsed], text: str, pointer: str) -> _Parsed:
    try:
        return parse(text)
    except RuleTextError as problem:
        raise NamesError(pointer, problem.what, problem.fix, problem.column) from None

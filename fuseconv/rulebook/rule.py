"""A rule as data, checked without torch and without running anything.

`entry.py` defines the written form in files. Checks that need torch (an op exists, its arguments are valid) are made
when patterns are compiled.
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
from fuseconv.rulebook.rule_text import (
    PRODUCT,
    Apply,
    Call,
    Condition,
    Line,
    RuleTextError,
    parse_condition,
    parse_line,
)

_Parsed = TypeVar("_Parsed")

Stage = Literal["canonical", "structure", "fuse", "search"]
STAGES: tuple[Stage, ...] = ("canonical", "structure", "fuse")
"""The stages whose rules are applied wherever they match, in execution order. Rules of `search` give alternatives."""

_Lines = Annotated[list[str], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Domain:
    """The floating values for which a rule holds and on which it is tested.

    Attributes:
        largest: the largest magnitude of a finite value. None for no limit.
        finite: whether the rule holds only for finite values.
    """

    largest: float | None = None
    finite: bool = False


class MissExample(BaseModel):
    """A program that the rule must not change, and a part of the reason that it must give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1)
    program: _Lines


class Examples(BaseModel):
    """Programs that exercise the rule. `fuseconv rules check` compares the replacement with eager PyTorch on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hit: list[_Lines] = []
    miss: list[MissExample] = []


class RuleFields(BaseModel):
    """The fields of a rule, in written and expanded form.

    A rule is one rewrite: where `match` matches and the conditions in `where` are proved, `replace` computes the same.

    Attributes:
        name: a name that is unique among the rules of a run.
        stage: canonical rules run first, to a fixpoint, then structure, then fuse. Rules of `search` are never applied
            by themselves: they give other forms of a computation, between which `convert --search` chooses.
        doc: what the rule matches and why the replacement is better, in a sentence or two.
        match: SSA lines, or a list of alternatives. A name that no line binds is a pattern variable.
        finds: a built-in matcher that replaces `match` and `replace`: `attention`, however its scores are computed;
            `constants`, values that do not depend on an input and are computed at conversion; `duplicates`, ops called
            twice on the same arguments; `in-place`, elementwise ops whose mutation nothing else sees.
        merge: names of pattern variables. All matches that agree on them are replaced together.
        where: conditions that use the functions in predicates.py.
        replace: SSA lines. Each name of `match` that they bind is a replaced value. No lines: the match is deleted.
        examples: programs that the rule changes and programs that it must not change.
        strides: whether the replaced values may have `any` strides afterwards, if all users accept them. `restored`:
            where they reach an output of the program, the output is copied to contiguous memory.
        draws: whether a dropout in the match may use `any` other random numbers of the same distribution afterwards, or
            must use the `same`.
        targets: the targets that the rule is limited to. If other targets are written too, its matches are not
            replaced. Default: all.
        devices: the devices that the rule is limited to. Default: all.
        allow: the rule changes numerical results and is applied only with `--allow` of this name.
        largest: the largest magnitude of a finite floating value for which the rule holds and is tested. Default: no
            limit.
        finite: whether the rule holds only for finite floating values and is not tested on infinities.
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
    strides: Literal["same", "any", "restored"] = "same"
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
    """One rewrite: where `match` matches and `where` is proved, `replace` computes the same. See `RuleFields`."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)

    _where: Callable[[str, int], str] | None = PrivateAttr(default=None)
    _file: Path | None = PrivateAttr(default=None)
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
            if self.stage == "search":
                self._check_search()
        except NamesError as wrong:
            context = {"what": wrong.what, "fix": wrong.fix, "pointer": wrong.pointer, "column": wrong.column}
            raise PydanticCustomError("rule_text", "{what}", context) from None
        return self

    def _check_search(self) -> None:
        if self.finds or self.merge:
            what = "a rule of the stage search has `finds` or `merge`"
            raise NamesError("/stage", what, "write `match` without them")
        for at, lines in enumerate(self.alternatives):
            for number, line in enumerate(lines):
                product = isinstance(line.value, Call) and line.value.op == PRODUCT
                if product or line.unpacks or isinstance(line.value, Apply):
                    fix = "write ops with one result; the rules of the stage find every order"
                    what = "a rule of the stage search has a product, several results or a function in `match`"
                    raise NamesError(self.pointer_of_line(at, number), what, fix)

    @cached_property
    def alternatives(self) -> tuple[tuple[Line, ...], ...]:
        """The parsed alternatives of `match`."""
        return tuple(
            tuple(_parsed(parse_line, text, self.pointer_of_line(at, line)) for line, text in enumerate(lines))
            for at, lines in enumerate(self.texts)
        )

    @cached_property
    def replacement(self) -> tuple[Line, ...]:
        """The parsed lines of `replace`."""
        return tuple(_parsed(parse_line, text, f"/replace/{at}") for at, text in enumerate(self.replace))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The parsed conditions of `where`."""
        return tuple(_parsed(parse_condition, text, f"/where/{at}") for at, text in enumerate(self.where))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of `match` that `replace` binds: the replaced values, in the order of `replace`."""
        if not self.match:
            return ()
        bound = {name for line in self.alternatives[0] if isinstance(line.value, Call) for name in line.targets}
        return tuple(name for line in self.replacement for name in line.targets if name in bound and name != "_")

    @cached_property
    def sha256(self) -> str:
        """The hash of the rule's behavior. Descriptions and examples are excluded."""
        content = self.model_dump(exclude={"doc", "examples", "largest", "finite"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def pointer_of_line(self, alternative: int, line: int) -> str:
        """Returns the JSON pointer, inside the rule, of a line of `match`."""
        return f"/match/{line}" if self.match and isinstance(self.match[0], str) else f"/match/{alternative}/{line}"

    def locate(self, pointer: str, column: int = 0) -> str:
        """Returns the position of a part of the rule in its file, or the name of a rule that was created in memory."""
        return self._where(pointer, column) if self._where is not None else f"rule {self.name} ({pointer})"

    @property
    def domain(self) -> Domain:
        """The floating values for which the rule holds."""
        return Domain(self.largest, self.finite)

    @property
    def file(self) -> Path | None:
        """The file that has the rule, without symbolic links. None for a rule that was created in memory."""
        return self._file

    @property
    def family(self) -> str:
        """The name of its file without the suffix, relative to the folder of the including file. May be empty."""
        return self._family

    @property
    def ops(self) -> tuple[Path, ...]:
        """The Python files that register the ops it uses, if its file lists any."""
        return self._ops

    @property
    def written(self) -> Mapping[str, Any]:
        """The fields as written in the file, which may be shorter; for a rule created in memory, its fields."""
        return self._written or self.model_dump(exclude_none=True)

    def placed(
        self,
        where: Callable[[str, int], str],
        file: Path,
        family: str,
        ops: tuple[Path, ...],
        written: Mapping[str, Any],
    ) -> Rule:
        """Returns the rule with its position in a file (for later errors), its family, its op files and its text."""
        rule = self.model_copy()
        rule._where, rule._file, rule._family, rule._ops, rule._written = where, file, family, ops, written
        return rule

    @property
    def texts(self) -> Iterator[Sequence[str]]:
        """The alternatives of `match`, as text."""
        if not self.match:
            return
        if isinstance(self.match[0], str):
            yield [text for text in self.match if isinstance(text, str)]
        else:
            yield from (lines for lines in self.match if isinstance(lines, list))


def refuse(rule: Rule, pointer: str, what: str, fix: str) -> RuleError:
    """Returns the error for a part of a rule, with its position in the file."""
    return RuleError(f"rule {rule.name}: {what}", where=rule.locate(pointer), fix=fix)


def _parsed(parse: Callable[[str], _Parsed], text: str, pointer: str) -> _Parsed:
    try:
        return parse(text)
    except RuleTextError as problem:
        raise NamesError(pointer, problem.what, problem.fix, problem.column) from None

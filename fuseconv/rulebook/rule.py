"""A rule as data. This module validates a rule without torch and without running any code of the rule.

`entry.py` defines the format in which files store rules. Checks that need torch (an op exists, its arguments are valid)
are made when patterns are compiled.
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
"""The stages, in execution order, whose rules are applied wherever they match. The rules of the stage `search` only
propose alternatives."""

_Lines = Annotated[list[str], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Domain:
    """The floating-point values for which a rule holds and on which it is tested.

    Attributes:
        largest: the largest magnitude of a finite value. None for no limit.
        finite: whether the rule holds only for finite values.
    """

    largest: float | None = None
    finite: bool = False


class MissExample(BaseModel):
    """A program that the rule must not change, and a text that must occur in the reported reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1)
    program: _Lines


class Examples(BaseModel):
    """Programs that exercise the rule. `fuseconv rules check` compares the replacement with eager PyTorch on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hit: list[_Lines] = []
    miss: list[MissExample] = []


class RuleFields(BaseModel):
    """The fields of a rule, both as written in a file and after expansion.

    A rule is one rewrite: where `match` matches and the conditions in `where` are proved, `replace` computes the same.

    Attributes:
        name: a name that is unique among the rules of a run.
        stage: the stage in which the rule is applied. Canonical rules run first, to a fixpoint, then the rules of
            structure, then those of fuse. Rules of `search` are never applied by themselves: they propose other forms
            of a computation, and `convert --search` chooses among the forms.
        doc: one or two sentences that say what the rule matches and why the replacement is better.
        match: SSA lines, or a list of alternatives. A name that no line binds is a pattern variable.
        finds: a built-in matcher that is used instead of `match` and `replace`. `activations` finds activations
            behind views of a product's result; `attention` finds attention, however its scores are computed;
            `attention-axes` finds attention whose axes before the positions are not batch and heads; `constants`
            finds values that do not depend on an input and can be computed at
            conversion; `duplicates` finds ops that are called twice on the same arguments; `in-place` finds in-place
            elementwise ops whose mutation no other op observes; `views` finds chains of views that can be shorter.
        merge: names of pattern variables. All matches that agree on these variables are replaced together.
        where: conditions that use the functions in predicates.py.
        replace: SSA lines. If a line binds a name of `match`, it replaces the value of that name. Without lines, the
            match is deleted.
        examples: programs that the rule changes and programs that it must not change.
        strides: `same` if the replaced values must keep their strides. `any` if their strides may change, provided that
            all users accept the new strides. `restored` is like `any`, but outputs of the program whose strides would
            change are copied to memory with their former strides.
        draws: `same` if a dropout in the match must keep its random numbers. `any` if the replacement may use other
            random numbers of the same distribution.
        targets: the targets that the rule supports. If a conversion also writes another target, the matches of the rule
            are not replaced. Default: all.
        devices: the devices that the rule supports. Default: all.
        allow: the name to pass to `--allow`. The rule changes numerical results and is applied only if it is allowed.
        largest: the largest magnitude of a finite floating-point value for which the rule holds and is tested. Default:
            no limit.
        finite: whether the rule holds only for finite floating-point values and is not tested on infinities.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    stage: Stage
    doc: str = Field(min_length=1)
    match: Annotated[list[str] | list[_Lines], Field(max_length=64)] = []
    finds: (
        Literal["activations", "attention", "attention-axes", "constants", "duplicates", "in-place", "views"] | None
    ) = None
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
            what = "a rule of the stage search cannot have `finds` or `merge`"
            raise NamesError("/stage", what, "write `match` without them")
        for at, lines in enumerate(self.alternatives):
            for number, line in enumerate(lines):
                product = isinstance(line.value, Call) and line.value.op == PRODUCT
                if product or line.unpacks or isinstance(line.value, Apply):
                    fix = "write ops with one result; the other rules of the stage find every order of the operands"
                    what = "a rule of the stage search cannot have a product, several results or a function in `match`"
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
        """The hash of the fields that determine the rule's behavior. Descriptions and examples are excluded."""
        content = self.model_dump(exclude={"doc", "examples", "largest", "finite"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def pointer_of_line(self, alternative: int, line: int) -> str:
        """Returns the JSON pointer, inside the rule, of a line of `match`."""
        return f"/match/{line}" if self.match and isinstance(self.match[0], str) else f"/match/{alternative}/{line}"

    def locate(self, pointer: str, column: int = 0) -> str:
        """Returns the position of a part of the rule in its file, or the rule's name for a rule created in memory."""
        return self._where(pointer, column) if self._where is not None else f"rule {self.name} ({pointer})"

    @property
    def domain(self) -> Domain:
        """The floating-point values for which the rule holds."""
        return Domain(self.largest, self.finite)

    @property
    def file(self) -> Path | None:
        """The file that contains the rule, with symbolic links resolved. None for a rule that was created in memory."""
        return self._file

    @property
    def family(self) -> str:
        """The path of the rule's file, without suffix, relative to the folder of the file that the user named.

        Empty for a rule that was created in memory.
        """
        return self._family

    @property
    def ops(self) -> tuple[Path, ...]:
        """The Python files that register custom ops and that the rule's file lists. Empty if the file lists none."""
        return self._ops

    @property
    def written(self) -> Mapping[str, Any]:
        """The fields as written in the file, before expansion, or the rule's fields if it was created in memory."""
        return self._written or self.model_dump(exclude_none=True)

    def placed(
        self,
        where: Callable[[str, int], str],
        file: Path,
        family: str,
        ops: tuple[Path, ...],
        written: Mapping[str, Any],
    ) -> Rule:
        """Returns a copy of the rule with its position in a file (for errors), family, op files and written fields."""
        rule = self.model_copy()
        rule._where, rule._file, rule._family, rule._ops, rule._written = where, file, family, ops, written
        return rule

    @property
    def texts(self) -> Iterator[Sequence[str]]:
        """Yields the alternatives of `match`, each as the unparsed lines of text."""
        if not self.match:
            return
        if isinstance(self.match[0], str):
            yield [text for text in self.match if isinstance(text, str)]
        else:
            yield from (lines for lines in self.match if isinstance(lines, list))


def refuse(rule: Rule, pointer: str, what: str, fix: str) -> RuleError:
    """Creates an error about the part of a rule at a JSON pointer, with the position of that part in the rule file."""
    return RuleError(f"rule {rule.name}: {what}", where=rule.locate(pointer), fix=fix)


def _parsed(parse: Callable[[str], _Parsed], text: str, pointer: str) -> _Parsed:
    try:
        return parse(text)
    except RuleTextError as problem:
        raise NamesError(pointer, problem.what, problem.fix, problem.column) from None

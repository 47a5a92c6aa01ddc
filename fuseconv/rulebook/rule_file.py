"""Reads rule files without torch. Resolves includes and reports errors with file, line, column and JSON pointer."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fuseconv.errors import RuleError
from fuseconv.rulebook.entry import Expanded, RuleEntry, RuleExamples, RuleFile, expand, fragments_of
from fuseconv.rulebook.fragments import Fragment
from fuseconv.rulebook.json_text import Document, pointer_of, read_json
from fuseconv.rulebook.rule import MissExample, Rule
from fuseconv.rulebook.rule_names import NamesError
from fuseconv.untrusted.files import is_plain, leads_somewhere

MAX_FILES = 1000
"""The maximum number of files from which the rules of a run are read."""

MAX_INCLUDES = 16
"""The maximum depth of includes."""

_Model = TypeVar("_Model", bound=BaseModel)

_MODELS: tuple[type[BaseModel], ...] = (RuleFile, RuleEntry, RuleExamples, MissExample)


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Reads a rule file or a folder of rule files, and all files that they include.

    If a path or an include that begins with `rules` does not exist, it refers to the rule files that come with
    fuseconv. So `rules/default.json` works from any folder.

    Args:
        path: a file or a folder. In a folder, every `*.json` file except `schema.json` is read, sorted by name;
            subfolders are not read. A file that several others include is read once, at its first occurrence.

    Raises:
        RuleError: a file cannot be read, is not strict JSON, does not follow `rules/schema.json`, or contains an
            invalid line or condition; an include is missing or forms a cycle; or two rules have the same name.
    """
    rules: dict[str, Rule] = {}
    for rule in _Reader().rules(_found(Path(), str(path)), (), f"{path}"):
        if (first := rules.setdefault(rule.name, rule)) is not rule:
            raise RuleError(
                f"two rules have the name {rule.name}",
                where=rule.locate("/name"),
                fix=f"rename one of them; the first is at {first.locate('/name')}",
            )
    return tuple(rules.values())


def own_folder() -> Path:
    """Returns the folder of the rules that come with fuseconv: in the package, or beside the package in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"


def _found(folder: Path, name: str) -> Path:
    path, own = folder / name, own_folder().parent / name
    return own if not leads_somewhere(path) and Path(name).parts[:1] == ("rules",) and own.exists() else path


class _Reader:
    """Reads rule files and the files that they include. Each file is read once."""

    def __init__(self) -> None:
        self.fragments: dict[Path, dict[str, Fragment]] = {}
        """Maps each file read so far to its fragments: its own, and the fragments of all files that it includes."""

    def rules(self, path: Path, open_files: tuple[Path, ...], where: str) -> Iterator[Rule]:
        """Yields the rules of a file or folder. The rules of included files come first."""
        if not leads_somewhere(path):
            own = "" if open_files else "; if you name no rules, fuseconv uses its own"
            fix = f"create {path}, or correct the name{own}"
            raise RuleError(f"there is no rule file {path.name}", where=where, fix=fix)
        real = Path(os.path.realpath(path))  # a symbolic link to itself is a cycle; Path.resolve raises an error
        if real in open_files:
            ring = " includes ".join(file.name for file in (*open_files[open_files.index(real) :], real))
            raise RuleError(f"the includes form a cycle: {ring}", where=where, fix="remove one of these includes")
        if len(open_files) > MAX_INCLUDES:
            raise RuleError(
                f"includes are nested deeper than {MAX_INCLUDES}", where=where, fix="include the files directly"
            )
        if real in self.fragments:
            return
        if path.is_dir():
            yield from self._folder(path, real, open_files, where)
        else:
            yield from self._file(path, real, open_files, where)

    def _folder(self, path: Path, real: Path, open_files: tuple[Path, ...], where: str) -> Iterator[Rule]:
        members = sorted(member for member in path.glob("*.json") if member.name != "schema.json")
        if not members:
            raise RuleError(
                f"there is no rule file in {path.name}", where=where, fix="name a folder that contains *.json files"
            )
        for member in members:
            yield from self.rules(member, open_files, where)
        self.fragments[real] = {}

    def _file(self, path: Path, real: Path, open_files: tuple[Path, ...], where: str) -> Iterator[Rule]:
        document = read_json(path, RuleError, named=not open_files)
        if open_files and not (
            isinstance(document.value, dict) and document.value.keys() & RuleFile.model_fields.keys()
        ):
            raise RuleError(
                "the included file is not a rule file",
                where=str(path),
                fix='include files that have the key "rules" or "include"',
            )
        file = _validated(RuleFile, document.value, document)
        if not (file.rules or file.include or file.ops or file.let):
            raise RuleError(
                "the file contains no rules",
                where=document.where(""),
                fix='write rules into "rules", or name files in "include"',
            )
        fragments: dict[str, Fragment] = {}
        for at, name in enumerate(file.include):
            included = _found(path.parent, name)
            yield from self.rules(included, (*open_files, real), document.where(f"/include/{at}"))
            fragments |= self.fragments[Path(os.path.realpath(included))]
        with _placed(document, ""):
            self.fragments[real] = {**fragments, **fragments_of(file)}
        if len(self.fragments) > MAX_FILES:
            raise RuleError(
                f"there are more than {MAX_FILES} rule files", where=where, fix="include only the files that are needed"
            )
        ops = tuple(_op_file(real.parent / name, document.where(f"/ops/{at}")) for at, name in enumerate(file.ops))
        family = _family(real, (*open_files, real)[0].parent)
        for at, entry in enumerate(file.rules):
            base = f"/rules/{at}"
            with _placed(document, base):
                expanded = list(expand(entry, self.fragments[real], file.stage, file.for_))
            for one in expanded:
                rule = _validated(Rule, one.fields, document, base, one)
                yield rule.placed(partial(_where_in, document, base, one), real, family, ops, one.written)


def _family(file: Path, folder: Path) -> str:
    return (file.relative_to(folder) if file.is_relative_to(folder) else Path(file.name)).with_suffix("").as_posix()


def _op_file(path: Path, where: str) -> Path:
    if path.suffix != ".py" or not is_plain(path):
        raise RuleError(f"there is no Python file {path.name}", where=where, fix="name the file that registers the ops")
    return path


def _where_in(document: Document, base: str, expanded: Expanded, pointer: str, column: int) -> str:
    return document.where(base + expanded.origin(pointer), column)


@contextmanager
def _placed(document: Document, base: str) -> Iterator[None]:
    """A context manager that converts a `NamesError` in the block to a `RuleError` with its position in the file."""
    try:
        yield
    except NamesError as problem:
        where = document.where(base + problem.pointer, problem.column)
        raise RuleError(problem.what, where=where, fix=problem.fix) from None


def _validated(
    model: type[_Model], value: Any, document: Document, base: str = "", expanded: Expanded | None = None
) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        keys, error = _first_error(problem, value)
        pointer = pointer_of(*keys) + (error["ctx"]["pointer"] if error["type"] == "rule_text" else "")
        place = base + (expanded.origin(pointer) if expanded else pointer)
        what, fix = _words(error, keys)
        column = error["ctx"]["column"] if error["type"] == "rule_text" else 0
        raise RuleError(what, where=document.where(place, column), fix=fix) from None


def _first_error(problem: ValidationError, value: Any) -> tuple[list[str | int], Any]:
    """Returns the path of the first invalid value in the file, and pydantic's error. Union names are left out."""
    errors = problem.errors(include_url=False)
    beside = (one for one in errors if one["type"] == "extra_forbidden" and one["loc"][:-1] == errors[0]["loc"][:-1])
    error = next(beside, errors[0])  # a field that is missing may be one that is misspelt
    keys: list[str | int] = []
    for key in error["loc"]:
        if key in value if isinstance(value, dict) else isinstance(value, list) and key in range(len(value)):
            value = value[key]
        elif error["type"] != "missing" or not isinstance(value, dict):
            continue
        keys.append(key)
    return keys, error


def _words(error: Any, keys: Sequence[str | int]) -> tuple[str, str]:
    """Returns a description of a validation error, and an instruction for fixing the rule file."""
    if error["type"] == "rule_text":
        return error["ctx"]["what"], error["ctx"]["fix"]
    what, fix = error["msg"][:1].lower() + error["msg"][1:], "see rules/schema.json and docs/writing-rules.md"
    if error["type"] == "extra_forbidden":
        fields = {field.alias or name for model in _MODELS for name, field in model.model_fields.items()}
        near = difflib.get_close_matches(str(keys[-1]), fields, 1)
        what, fix = f"unknown field {keys[-1]}", f"did you mean {near[0]}?" if near else fix
    if error["type"] in ("string_pattern_mismatch", "literal_error"):
        what += f", not {error['input']!r}"
    if error["type"] == "missing":
        what = f"the field {keys[-1]} is missing"
    if error["type"] == "model_type":
        what = "the value must be a JSON object"
    return what, fix

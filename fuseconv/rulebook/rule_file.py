"""Rule files to rules: includes resolved, every error with file, line, column and JSON pointer. No torch."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fuseconv.errors import RuleError
from fuseconv.rulebook.json_text import Document, pointer_of, read_json
from fuseconv.rulebook.rule import Examples, MissExample, Rule, RuleFile
from fuseconv.untrusted.files import is_plain, leads_somewhere

MAX_FILES = 1000
"""The most files one run of rules may come from."""

MAX_INCLUDES = 16
"""The longest chain of includes."""

_MODELS: tuple[type[BaseModel], ...] = (RuleFile, Rule, Examples, MissExample)


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Reads a rule file, or a folder of them, with everything it includes.

    A path or an include that is not there is looked up among fuseconv's own: `rules/default.json` means the same from
    every folder.

    Args:
        path: a file, or a folder: then every `*.json` directly in it but `schema.json`, by name. A file that is reached
            twice counts once, where it is first reached.

    Raises:
        RuleError: a file cannot be read, is not strict JSON, does not follow `rules/schema.json`, or a rule's text is
            wrong; an include is missing or goes round; two rules have one name.
    """
    rules: dict[str, Rule] = {}
    for rule in _load(_found(Path(), str(path)), (), set(), f"{path}"):
        if (first := rules.setdefault(rule.name, rule)) is not rule:
            raise RuleError(
                f"two rules are named {rule.name}",
                where=rule.locate("/name"),
                fix=f"rename one; the first is at {first.locate('/name')}",
            )
    return tuple(rules.values())


def own_folder() -> Path:
    """Returns the folder of the rules that come with fuseconv: inside the package, or beside it in a source tree."""
    package = Path(__file__).parents[1]
    inside = package / "rules"
    return inside if inside.is_dir() else package.parent / "rules"


def _found(folder: Path, name: str) -> Path:
    path, own = folder / name, own_folder().parent / name
    return own if not leads_somewhere(path) and Path(name).parts[:1] == ("rules",) and own.exists() else path


def _load(path: Path, open_files: tuple[Path, ...], done: set[Path], where: str) -> Iterator[Rule]:
    if not leads_somewhere(path):
        raise RuleError(f"there is no {path.name}", where=where, fix=f"create {path}, or correct the name")
    real = Path(os.path.realpath(path))  # a link to itself is one, for Path.resolve it is an error
    if real in open_files:
        ring = " includes ".join(file.name for file in (*open_files[open_files.index(real) :], real))
        raise RuleError(f"include cycle: {ring}", where=where, fix="remove one of them")
    if len(open_files) > MAX_INCLUDES:
        raise RuleError(
            f"includes are nested deeper than {MAX_INCLUDES}", where=where, fix="include the files directly"
        )
    if real in done:
        return
    if path.is_dir():
        members = sorted(member for member in path.glob("*.json") if member.name != "schema.json")
        if not members:
            raise RuleError(f"no rule file in {path.name}", where=where, fix="name a folder with *.json files in it")
        for member in members:
            yield from _load(member, open_files, done, where)
        return
    document = read_json(path, RuleError, named=not open_files)
    if open_files and not (isinstance(document.value, dict) and document.value.keys() & RuleFile.model_fields.keys()):
        raise RuleError(
            "the included file is not a rule file", where=str(path), fix='include files that have "rules" or "include"'
        )
    file = _validated(document)
    if not (file.rules or file.include or file.ops):
        raise RuleError(
            "the file contains no rules",
            where=document.where(""),
            fix='write some in "rules", or name files in "include"',
        )
    for at, name in enumerate(file.include):
        yield from _load(_found(path.parent, name), (*open_files, real), done, document.where(f"/include/{at}"))
    done.add(real)
    if len(done) > MAX_FILES:
        raise RuleError(f"more than {MAX_FILES} rule files", where=where, fix="include only the files that are needed")
    ops = tuple(_op_file(real.parent / name, document.where(f"/ops/{at}")) for at, name in enumerate(file.ops))
    for at, rule in enumerate(file.rules):
        family = _family(real, (*open_files, real)[0].parent)
        yield rule.placed(partial(_where_in, document, f"/rules/{at}"), family, ops)


def _family(file: Path, folder: Path) -> str:
    return (file.relative_to(folder) if file.is_relative_to(folder) else Path(file.name)).with_suffix("").as_posix()


def _op_file(path: Path, where: str) -> Path:
    if path.suffix != ".py" or not is_plain(path):
        raise RuleError(f"there is no Python file {path.name}", where=where, fix="name the file that registers the ops")
    return path


def _where_in(document: Document, base: str, pointer: str, column: int) -> str:
    return document.where(base + pointer, column)


def _validated(document: Document) -> RuleFile:
    try:
        return RuleFile.model_validate(document.value)
    except ValidationError as problem:
        raise _first_error(problem, document) from None


def _first_error(problem: ValidationError, document: Document) -> RuleError:
    """Turns pydantic's first error into ours; the parts of its path that name a branch of a union are left out."""
    error = problem.errors(include_url=False)[0]
    keys: list[str | int] = []
    value: Any = document.value
    for key in error["loc"]:
        if key in value if isinstance(value, dict) else isinstance(value, list) and key in range(len(value)):
            value = value[key]
        elif error["type"] != "missing" or not isinstance(value, dict):
            continue
        keys.append(key)
    context = error.get("ctx", {})
    if error["type"] == "rule_text":
        pointer = pointer_of(*keys) + context["pointer"]
        return RuleError(context["what"], where=document.where(pointer, context["column"]), fix=context["fix"])
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
        what = "not an object"
    return RuleError(what, where=document.where(pointer_of(*keys)), fix=fix)

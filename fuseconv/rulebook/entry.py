"""The file format of rules: fragments, tables and abbreviated examples, which expand to plain rules.

A fragment is a named group of lines or conditions in the `let` section of a rule file. An entry is a rule, or a table
of rules, as written in a rule file.

The pydantic models below define the format. They validate the files, and `rules/schema.json` is generated from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fuseconv.rulebook.derived import derived_examples, with_differences
from fuseconv.rulebook.fragments import Fragment, Fragments, expand_conditions, expand_lines, located, read_fragment
from fuseconv.rulebook.json_text import pointer_of
from fuseconv.rulebook.rule import Examples, RuleFields, Stage
from fuseconv.rulebook.rule_names import NamesError
from fuseconv.rulebook.rule_text import Call, parse_line

_Lines = Annotated[list[str], Field(min_length=1, max_length=64)]
_PLACE = re.compile(r"\{(\w+)\}")
_REVERSED = "-reversed"

Table = Annotated[list[dict[str, str]], Field(min_length=1, max_length=256)] | None
"""The rows of a table. Each row maps placeholders to texts."""


class RuleExamples(Examples):
    """Examples as written in a rule file.

    Attributes:
        context: lines from which an example of each alternative of `match` is derived: inputs, values of pattern
            variables, and lines before and after the match. A program in `hit` or `miss` needs only the lines that
            differ from the first derived example or, without a context, from the first `hit` example.
    """

    context: list[str] = Field(default=[])


class RuleEntry(RuleFields):
    """A rule or a table of rules as written in a rule file.

    Attributes:
        for_: the rows of a table. Each row gives one rule, in which the row's value of KEY replaces `{KEY}` in every
            text. Lines that become empty are dropped.
        equality: whether the rule also holds in reverse, so that `match` may replace `replace`. The entry then gives
            two rules of the stage `search`. The name of the second ends with `-reversed`, and the second is tested on
            examples that are derived from the context.
    """

    name: str = Field(pattern=r"^[a-z0-9{}-]+$", max_length=60)
    stage: Stage | None = None  # type: ignore[assignment]  # absent where the file has one for all its rules
    for_: Table = Field(default=None, alias="for")
    equality: bool = False
    examples: RuleExamples = RuleExamples()


class RuleFile(BaseModel):
    """A rule file. It includes other files and defines rules. The order of the rules breaks ties.

    Attributes:
        include: files or folders, relative to this file. Their rules come first, and this file can use their fragments.
        ops: Python files, relative to this file, that register the ops of the rules. They run only if the user trusts
            them.
        stage: the stage of the rules that do not name a stage.
        for_: the table for the rules whose names contain a placeholder and that have no table of their own.
        let: fragments: named lines or conditions.
        rules: the rules.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="fuseconv rule file")

    schema_: str | None = Field(default=None, alias="$schema")
    include: list[str] = []
    ops: list[str] = []
    stage: Stage | None = None
    for_: Table = Field(default=None, alias="for")
    let: dict[str, list[str] | list[_Lines]] = {}
    rules: list[RuleEntry] = []


@dataclass(frozen=True)
class Expanded:
    """A plain rule as JSON values, with the source position of each part.

    Attributes:
        fields: the fields of the plain rule, to be validated by `Rule.model_validate`.
        origins: maps the JSON pointer of a line in the plain rule to the pointer of its source line in the entry.
        written: the fields of the entry, with the placeholders replaced by the values of the table row.
    """

    fields: dict[str, Any]
    origins: Mapping[str, str]
    written: Mapping[str, Any]

    def origin(self, pointer: str) -> str:
        """Returns the JSON pointer, inside the entry, of the text from which a part of the plain rule was made."""
        return self.origins.get(pointer, pointer)


def schema() -> str:
    """Returns the JSON schema of a rule file, as stored in `rules/schema.json`."""
    return json.dumps(RuleFile.model_json_schema(), indent=2) + "\n"


def fragments_of(file: RuleFile) -> dict[str, Fragment]:
    """Returns the fragments that a file defines, by name.

    Raises:
        NamesError: a fragment is malformed, or two fragments have the same name.
    """
    found: dict[str, Fragment] = {}
    for header, body in file.let.items():
        pointer = pointer_of("let", header)
        with located(pointer):
            fragment = read_fragment(header, body)
        if fragment.name in found:
            raise NamesError(pointer, f"two fragments have the name {fragment.name}", "rename one of them")
        found[fragment.name] = fragment
    return found


def expand(
    entry: RuleEntry, fragments: Fragments, stage: Stage | None = None, table: Table = None
) -> Iterator[Expanded]:
    """Yields the plain rules to which an entry expands.

    Args:
        entry: the rule or table to expand.
        fragments: the fragments that the rule file and its included files define.
        stage: the default stage that the file sets for its rules, or None.
        table: the default `for` table that the file sets for its rules, or None.

    Raises:
        NamesError: a line or condition does not follow the grammar. The error gives its pointer inside the entry.
    """
    values = entry.model_dump(by_alias=True, exclude_unset=True)
    values = ({"stage": stage} if stage else {}) | values
    own, equality = values.pop("for", None), values.pop("equality", False)
    for at, row in enumerate(_rows(entry, table)):
        found = _expanded(_filled(values, row, f"/for/{at}" if own else "/name") if row else values, fragments)
        yield found
        if equality:
            yield _reversed(found)


def names_of(entry: RuleEntry, table: Table = None) -> Iterator[str]:
    """Yields the names of the plain rules to which an entry expands.

    Args:
        entry: the rule or table.
        table: the default `for` table that the file sets for its rules, or None.

    Raises:
        NamesError: a row of the table has no value for a placeholder of the name.
    """
    for row in _rows(entry, table):
        name = _filled(entry.name, row, "/name")
        yield name
        if entry.equality:
            yield name + _REVERSED


def _rows(entry: RuleEntry, table: Table) -> Sequence[Mapping[str, str]]:
    return entry.for_ or (table if _PLACE.search(entry.name) else None) or [{}]


def _reversed(found: Expanded) -> Expanded:
    """Returns the reverse of a rule, with `match` and `replace` swapped."""
    match, replace = found.fields["match"], found.fields["replace"]
    if found.fields.get("stage") != "search":
        raise NamesError("/equality", "an equality must belong to the stage search", 'write "stage": "search"')
    if not match or not isinstance(match[0], str):
        raise NamesError(
            "/match",
            "an equality cannot have alternatives",
            "write one rule for each alternative, for example with `for`",
        )
    for at, text in enumerate(replace):
        line = parse_line(text)
        if line.constant or not isinstance(line.value, Call):
            fix = "call an op; ops on constants are computed during the conversion, without `: constant`"
            raise NamesError(f"/replace/{at}", "this line of an equality cannot be matched", fix)
    context = found.written.get("examples", {}).get("context", [])
    values = {**found.fields, "name": found.fields["name"] + _REVERSED, "match": replace, "replace": match}
    turned = _expanded({**values, "examples": {"context": context}}, {})
    swapped = {"match": "replace", "replace": "match"}
    origins = {}
    for pointer in turned.origins:
        _, field, *rest = pointer.split("/")
        origins[pointer] = found.origin("/".join(["", swapped.get(field, field), *rest]))
    return Expanded(turned.fields, origins, turned.written)


def _filled(value: Any, row: Mapping[str, str], pointer: str) -> Any:
    """Returns a JSON value with the placeholders in its strings replaced by the values of a table row."""
    if isinstance(value, dict):
        return {key: _filled(inner, row, pointer) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, row, pointer) for inner in value]
    if not isinstance(value, str):
        return value
    if missing := next((place[1] for place in _PLACE.finditer(value) if place[1] not in row), None):
        raise NamesError(pointer, f"the row has no {missing}", f"add it, or remove {{{missing}}} from the rule")
    return _PLACE.sub(lambda place: row[place[1]], value)


def _expanded(values: dict[str, Any], fragments: Fragments) -> Expanded:
    match = _alternatives(values.get("match", []), "/match", fragments)
    where = list(expand_conditions(_lines(values.get("where", []), "/where"), fragments))
    replaced = _alternatives(values.get("replace", []), "/replace", fragments)
    if len(replaced) > 1:
        raise NamesError(
            "/replace",
            "the replacement cannot have alternatives",
            "write only lines that are valid for every alternative",
        )
    origins = {f"/where/{at}": pointer for at, (_, pointer) in enumerate(where)}
    for field, alternatives in (("match", match), ("replace", replaced)):
        for at, lines in enumerate(alternatives):
            inside = f"/{field}" if len(alternatives) == 1 else f"/{field}/{at}"
            origins |= {f"{inside}/{number}": pointer for number, (_, pointer) in enumerate(lines)}
    texts = [[text for text, _ in lines] for lines in match]
    fields = {
        **values,
        "match": texts[0] if len(texts) == 1 else texts,
        "where": [text for text, _ in where],
        "replace": [text for lines in replaced for text, _ in lines],
    }
    if examples := values.get("examples"):
        derived = _derived(texts, fields["replace"], [line for line in examples.get("context", []) if line])
        hits, misses = examples.get("hit", []), examples.get("miss", [])
        base = [*derived, *hits, []][0]
        fields["examples"] = {
            "hit": [*derived, *(_written(lines, base, f"/examples/hit/{at}") for at, lines in enumerate(hits))],
            "miss": [
                {**miss, "program": _written(miss["program"], base, f"/examples/miss/{at}/program")}
                for at, miss in enumerate(misses)
            ],
        }
        origins |= {f"/examples/hit/{at}": "/examples/context" for at in range(len(derived))}
        origins |= {f"/examples/hit/{len(derived) + at}": f"/examples/hit/{at}" for at in range(len(hits))}
    return Expanded({key: value for key, value in fields.items() if value or key in values}, origins, values)


def _derived(match: Sequence[Sequence[str]], replace: Sequence[str], context: Sequence[str]) -> list[list[str]]:
    if not context:
        return []
    with located("/examples/context"):
        alternatives = [[parse_line(text) for text in lines] for lines in match]
        made = [name for text in replace for name in parse_line(text).targets]
        bound = {name for line in alternatives[0] if isinstance(line.value, Call) for name in line.targets}
        results = [name for name in made if name in bound and name != "_"]
        return derived_examples(alternatives, results, context)


def _written(lines: Sequence[str], base: Sequence[str], pointer: str) -> list[str]:
    with located(pointer):
        return with_differences(base, lines)


def _alternatives(value: Sequence[Any], pointer: str, fragments: Fragments) -> list[list[tuple[str, str]]]:
    """Returns the alternatives to which `match` or `replace` expands: lists of (line, JSON pointer of its source)."""
    if not value:
        return []
    nested = not isinstance(value[0], str)
    written = [_lines(one, f"{pointer}/{at}") for at, one in enumerate(value)] if nested else [_lines(value, pointer)]
    return [one for lines in written for one in expand_lines(lines, fragments)]


def _lines(value: Sequence[Any], pointer: str) -> list[tuple[str, str]]:
    """Returns the nonempty lines as (line, JSON pointer). A line may be empty for some rows of a table."""
    return [(text, f"{pointer}/{at}") for at, text in enumerate(value) if text]

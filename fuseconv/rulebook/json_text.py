"""A strict JSON parser that records the position of every value, so that errors can name the position.

The parser implements RFC 8259 without extensions: no byte order mark, no duplicate keys, no NaN or Infinity. Size and
depth are limited, so that a hostile file causes an error instead of exhausting memory or the stack. This module does
not import torch.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # the typeshed stubs omit it
from pathlib import Path
from typing import Any, NoReturn

from fuseconv.errors import FuseconvError
from fuseconv.untrusted.files import read_plain

MAX_BYTES = 1 << 20
"""The maximum size of a file in bytes. A plan of 100,000 nodes fits; rule files are far smaller."""

MAX_DEPTH = 32
"""The maximum nesting of arrays and objects. A rule file requires six levels."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?P<fraction>\.\d{1,30})?(?P<exponent>[eE][+-]?\d{1,4})?(?![\w.])")
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Document:
    """A parsed JSON file: its value, and the position of each part.

    Attributes:
        path: the path of the file, as the user named it.
        value: the contents as plain Python values.
        offsets: maps the JSON pointer of each value to the offset of the value in `text`.
        text: the characters of the file.
        error: the class of the exceptions that report an invalid file of this kind.
    """

    path: str
    value: Any
    offsets: Mapping[str, int]
    text: str
    error: type[FuseconvError]

    def where(self, pointer: str, column: int = 0) -> str:
        """Returns the position of a value as `file:line:column (pointer)`.

        If the document has no value at the pointer, the position is that of the nearest existing parent.

        Args:
            pointer: an RFC 6901 pointer, such as `/rules/3/match/1`. Empty for the whole document.
            column: if the value is a string, an offset in characters into the string. Ignored for other values.
        """
        known = pointer
        while known not in self.offsets:
            known = known.rpartition("/")[0]
        offset = self.offsets[known]
        if known == pointer and column and self.text[offset] == '"':
            offset += 1 + column
        return _place(self.path, self.text, offset, pointer)


def pointer_of(*keys: str | int) -> str:
    """Returns the RFC 6901 pointer that consists of the given object keys and array indices."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def read_json(path: Path, error: type[FuseconvError], *, named: bool = True) -> Document:
    """Reads and parses one JSON file.

    Args:
        path: the file to read.
        error: the class of the exceptions that report an invalid file.
        named: whether the user named the file. If only another file refers to it, its contents may be private, so an
            error about invalid JSON shows no key of the file.

    Raises:
        FuseconvError: the file cannot be read, is larger than `MAX_BYTES`, is not UTF-8, or is not strict JSON. The
            exception is of the class `error` and gives the file, line, column and pointer. It shows keys of the file,
            but no values.
    """
    try:
        data = read_plain(path, MAX_BYTES)
    except OSError as problem:
        large = problem.errno == errno.EFBIG
        fix = "split the file and `include` the parts" if large else "give an existing, readable file"
        raise error(f"{path.name} cannot be read: {problem.strerror}", where=str(path), fix=fix) from problem
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise error(
            f"byte {problem.start} is not UTF-8", where=f"{path}:{line}:1 (/)", fix="save the file as UTF-8"
        ) from problem
    return parse_json(text, str(path), error, named=named)


def parse_json(text: str, path: str, error: type[FuseconvError], *, named: bool = True) -> Document:
    """Parses JSON from the string `text`. The other arguments and the errors are those of `read_json`."""
    reader = _Reader(text, path, error, named=named)
    return Document(path, reader.document(), reader.offsets, text, error)


def _place(path: str, text: str, offset: int, pointer: str) -> str:
    return f"{_line_and_column(path, text, offset)} ({pointer or '/'})"


def _line_and_column(path: str, text: str, offset: int) -> str:
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    return f"{path}:{line}:{column}"


class _Reader:
    """A recursive descent parser for one text. `MAX_DEPTH` limits the recursion."""

    def __init__(self, text: str, path: str, error: type[FuseconvError], *, named: bool) -> None:
        self.text = text
        self.path = path
        self.error = error
        self.named = named
        self.offset = 0
        self.offsets: dict[str, int] = {}

    def document(self) -> Any:
        if self.text.startswith("\ufeff"):
            self.refuse("the file starts with a byte order mark", "save it as UTF-8 without BOM", "")
        value = self.value("", 0)
        self.skip()
        if self.offset != len(self.text):
            self.refuse("there is text after the JSON value", "keep only one JSON object in the file", "")
        return value

    def value(self, pointer: str, depth: int) -> Any:
        self.skip()
        self.offsets[pointer] = self.offset
        if depth > MAX_DEPTH:
            self.refuse(
                f"the JSON is nested deeper than {MAX_DEPTH} levels",
                "remove levels: a rule file needs only six",
                pointer,
            )
        head = self.text[self.offset : self.offset + 1]
        if head == "{":
            return self.members(pointer, depth)
        if head == "[":
            return self.items(pointer, depth)
        if head == '"':
            return self.string(pointer)
        for name, constant in _CONSTANTS.items():
            if self.text.startswith(name, self.offset):
                self.offset += len(name)
                return constant
        return self.number(pointer)

    def members(self, pointer: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self.more("}", first=not members, pointer=pointer):
            start = self.offset
            key = self.string(pointer)
            inner = pointer + pointer_of(key)
            if key in members:
                self.offset = start
                self.refuse("the key is given twice", "keep one of the two", inner)
            self.skip()
            if not self.text.startswith(":", self.offset):
                self.refuse("a ':' is missing after the key", 'write "key": value', inner)
            self.offset += 1
            members[key] = self.value(inner, depth + 1)
        return members

    def items(self, pointer: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while self.more("]", first=not items, pointer=pointer):
            items.append(self.value(f"{pointer}/{len(items)}", depth + 1))
        return items

    def more(self, end: str, *, first: bool, pointer: str) -> bool:
        """Moves to the next item of an array or object, past the opening bracket or a comma, and returns True.

        At the closing bracket `end`, moves past the bracket and returns False.
        """
        if first:
            self.offset += 1
        self.skip()
        if self.text.startswith(end, self.offset):
            self.offset += 1
            return False
        if not first:
            if not self.text.startswith(",", self.offset):
                self.refuse(f"a ',' or '{end}' is missing", "close the bracket, or separate the values", pointer)
            comma = self.offset
            self.offset += 1
            self.skip()
            if self.text.startswith((end, ","), self.offset):
                self.offset = comma
                self.refuse("a ',' has no value after it", "remove the comma", pointer)
        return True

    def string(self, pointer: str) -> str:
        if not self.text.startswith('"', self.offset):
            self.refuse("a string in double quotes is missing", 'write "..."', pointer)
        try:
            value, self.offset = scanstring(self.text, self.offset + 1, True)
        except json.JSONDecodeError as problem:
            self.offset = problem.pos
            self.refuse("not JSON: a string is not terminated or has an invalid escape", "correct the string", pointer)
        return str(value)

    def number(self, pointer: str) -> int | float:
        match = _NUMBER.match(self.text, self.offset)
        if match is None:
            self.refuse(
                "not JSON: a value is missing", "write an object, array, string, number, true, false or null", pointer
            )
        self.offset = match.end()
        if match["fraction"] is None and match["exponent"] is None:
            return int(match[0])
        number = float(match[0])
        if not math.isfinite(number):
            self.refuse("the number is too large", "write a finite number", pointer)
        return number

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.offset)
        assert match is not None
        self.offset = match.end()

    def refuse(self, what: str, fix: str, pointer: str) -> NoReturn:
        if self.named:
            raise self.error(what, where=_place(self.path, self.text, self.offset, pointer), fix=fix)
        what = f"not JSON: {what.removeprefix('not JSON: ')}"
        raise self.error(what, where=_line_and_column(self.path, self.text, self.offset), fix=fix)

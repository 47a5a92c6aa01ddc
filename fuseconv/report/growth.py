"""Reads the errors at the borders of modules and matches from the output of `fuseconv blame --json`.

A border is a node whose value is compared with the fp64 reference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from fuseconv.errors import FileError, UsageError
from fuseconv.untrusted.files import read_plain

_FIX = "write it with `fuseconv blame BUNDLE --against MODEL --json`"


@dataclass(frozen=True)
class Error:
    """The numerical error at the border of a module or match, in one test case.

    Attributes:
        node: the node of the captured program whose value is compared.
        layer: the path of the node's module. Empty for the model itself.
        op: the op of the fused program that computes the value.
        rule: the rule of the match that produces the value. None if no match produces it.
        rms_fp64: the root mean square of the fp64 reference.
        original: the root-mean-square error of the original program in its own dtype. None if not finite.
        fused: the root-mean-square error of the fused program in PyTorch. None if not finite.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")

    node: str
    layer: str
    op: str
    rule: str | None
    rms_fp64: float
    original: float | None
    fused: float | None


@dataclass(frozen=True)
class Verdict:
    """The cause of a numerical difference.

    Attributes:
        meaning: the cause in words.
        targets: the targets that differ because of this cause. Empty if the program differs before a target is written.
        node: the first node that differs. None if the node was not found.
        rule: the rule to blame. None if no rule is to blame.
        detail: the finding in words. May be empty.
        limit: whether the difference is a limit of a runtime: only special values differ, even without fusions.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")

    meaning: str
    targets: tuple[str, ...]
    node: str | None
    rule: str | None
    detail: str
    limit: bool


@dataclass(frozen=True)
class Growth:
    """The result of `blame`.

    Attributes:
        case: the case in which the errors were measured.
        borders: the errors, in the order of the captured program.
        verdicts: one verdict per cause of a difference.
        compared: the targets that were compared.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")

    case: str
    borders: tuple[Error, ...]
    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]


@dataclass(frozen=True)
class _Problem:
    """The error with which the command failed."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    message: str
    hint: str


@dataclass(frozen=True)
class _Found:
    """The output of `fuseconv blame --json`. The result is empty if the command failed before it compared anything."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    command: Literal["blame"]
    result: Growth | Annotated[dict[str, JsonValue], Field(max_length=0)]
    error: _Problem | None


_FOUND = TypeAdapter(_Found)


def read_growth(path: Path, nodes: Collection[str]) -> Growth:
    """Reads the output of `fuseconv blame --json`.

    Args:
        path: the path of the file.
        nodes: the names of the captured program's nodes. Every error in the file must belong to one of these nodes.

    Raises:
        FileError: the file cannot be read.
        UsageError: the file is not an output of `fuseconv blame --json`, contains the error of a failed command, or
            belongs to another model.
    """
    try:
        printed = _FOUND.validate_json(read_plain(path))
    except OSError as error:
        raise FileError(f"the file of errors cannot be read: {error.strerror}", where=str(path), fix=_FIX) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        what = f"the file is not the output of `fuseconv blame --json`: {field + ': ' if field else ''}{first['msg']}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    found = printed.result
    if not isinstance(found, Growth):
        problem = printed.error or _Problem("it contains no result", _FIX)
        raise UsageError(f"`fuseconv blame` failed: {problem.message}", where=str(path), fix=problem.hint)
    if strangers := [one.node for one in found.borders if one.node not in nodes]:
        what = f"the errors belong to another model: the bundle has no node {strangers[0]}"
        raise UsageError(what, where=str(path), fix="give one file for each bundle, in the order of the bundles")
    return found

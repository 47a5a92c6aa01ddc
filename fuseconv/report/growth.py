"""The error at the borders of modules and matches, as `fuseconv blame --json` measured it."""

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
    """The error at a border in one case.

    Attributes:
        node: the node of the captured program.
        layer: the path of its module. Empty for the model itself.
        op: the op of the fused program that computes it.
        rule: the rule of the match that it is a result of, if it is one.
        rms_fp64: the root mean square of the fp64 reference.
        original: the root-mean-square error of the original in its own dtype. None if it is not finite.
        fused: that of the fused program in PyTorch. None if it is not finite.
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
    """What is to blame for a difference.

    Attributes:
        meaning: the cause in words.
        targets: the targets that differ because of it. Empty if the program differs before a target is written.
        node: the first node that differs. None if it was not found.
        rule: the rule to blame, if it is one.
        detail: what was found, in words. May be empty.
        limit: whether only special values differ, and without fusions too.
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
    """What `blame` found.

    Attributes:
        case: the case in which the errors were measured.
        borders: the errors, in the order of the captured program.
        verdicts: one per cause of a difference.
        compared: the targets that were compared.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")

    case: str
    borders: tuple[Error, ...]
    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]


@dataclass(frozen=True)
class _Problem:
    """Why the command failed."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    message: str
    hint: str


@dataclass(frozen=True)
class _Found:
    """What the command prints with `--json`. Without a result it failed before anything was compared."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    command: Literal["blame"]
    result: Growth | Annotated[dict[str, JsonValue], Field(max_length=0)]
    error: _Problem | None


_FOUND = TypeAdapter(_Found)


def read_growth(path: Path, nodes: Collection[str]) -> Growth:
    """Reads the output of `fuseconv blame --json`.

    Args:
        path: the file.
        nodes: the names of the nodes of the captured program. The errors must be of these.

    Raises:
        FileError: the file cannot be read.
        UsageError: the file is something else, or is of another model.
    """
    try:
        printed = _FOUND.validate_json(read_plain(path))
    except OSError as error:
        raise FileError(f"the errors cannot be read: {error.strerror}", where=str(path), fix=_FIX) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        what = f"not the output of `fuseconv blame --json`: {field + ': ' if field else ''}{first['msg']}"
        raise UsageError(what, where=str(path), fix=_FIX) from None
    found = printed.result
    if not isinstance(found, Growth):
        problem = printed.error or _Problem("it printed no result", _FIX)
        raise UsageError(f"`fuseconv blame` failed: {problem.message}", where=str(path), fix=problem.hint)
    if strangers := [one.node for one in found.borders if one.node not in nodes]:
        what = f"the errors are of another model: the bundle has no node {strangers[0]}"
        raise UsageError(what, where=str(path), fix="give one file per bundle, in the order of the bundles")
    return found

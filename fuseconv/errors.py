"""The exceptions that fuseconv raises. Each says what went wrong, where, and how to fix it.

The command line prints these as three lines, escapes control characters, and exits with the error's `exit_status`.
With `--json` it prints the error's `code` as well.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "ContractError",
    "FileError",
    "FrozenError",
    "FuseconvError",
    "ParityError",
    "RefusedError",
    "RuleError",
    "SlowerError",
    "UnsupportedError",
    "UpstreamError",
    "UsageError",
]

_ACTIVE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1: they start terminal escape sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of the text that follows
    "\u2028\u2029"  # separators that some terminals treat as newlines
    "\ud800-\udfff"  # surrogates, which stand for bytes of a file name that are not UTF-8
    "]"
)


class FuseconvError(Exception):
    """The base class of fuseconv's errors: an error message with a location and a fix.

    Args:
        what: what went wrong, in one sentence.
        where: the file, node, rule or flag to look at.
        fix: what the user can do.
    """

    code: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 7

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at: {on_one_line(self.where)}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class ParityError(FuseconvError):
    """An artifact or a rule does not compute the same results as the original.

    Args:
        what: what went wrong, in one sentence.
        where: the file, node, rule or flag to look at.
        fix: what the user can do.
        blame: the result of the search for the cause. None if fuseconv did not search for it.
    """

    code = "parity"
    exit_status = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "", blame: Any = None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.blame = blame


class FrozenError(FuseconvError):
    """The matches of a conversion differ from the lock."""

    code = "frozen"
    exit_status = 1


class SlowerError(FuseconvError):
    """A bundle is slower than a peer that the caller requires the bundle to match.

    A peer runs the original model without a bundle, for example with torch.compile.

    Args:
        what: what went wrong, in one sentence.
        where: the model.
        fix: what the user can do.
        rows: for each peer, the bundle's time and the peer's time, including peers that are slower than the bundle.
    """

    code = "slower"
    exit_status = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "", rows: Sequence[Any] = ()) -> None:
        super().__init__(what, where=where, fix=fix)
        self.rows = tuple(rows)


class UsageError(FuseconvError):
    """A flag, an input specification or a combination of them is invalid."""

    code = "usage"
    exit_status = 2


class RuleError(FuseconvError):
    """A rule file or a plan cannot be read or applied."""

    code = "rule"
    exit_status = 2


class ContractError(FuseconvError):
    """A call violates the input contract of the model."""

    code = "contract"
    exit_status = 2


class RefusedError(FuseconvError):
    """An input is damaged or malicious, or would run code without `--trust`."""

    code = "refused"
    exit_status = 3


class UnsupportedError(FuseconvError):
    """A target does not support the model or this machine."""

    code = "unsupported"
    exit_status = 4


class UpstreamError(FuseconvError):
    """An external tool (exporter, compiler, runtime) failed."""

    code = "upstream"
    exit_status = 5


class FileError(FuseconvError):
    """Reading or writing a file failed."""

    code = "io"
    exit_status = 6

    @staticmethod
    def absent(path: object) -> FileError:
        """Returns the error for a path that does not exist."""
        return FileError("there is no such file or folder", where=str(path), fix="check the path")

    @staticmethod
    def unwritable(what: str, error: OSError, where: object, unchanged: str = "") -> FileError:
        """Returns the error for an output that cannot be written. The fix depends on what the system says.

        Args:
            what: what happened, such as `the report cannot be written`.
            error: the error of the system.
            where: the path.
            unchanged: what is added to the fix, such as `the previous contents are unchanged`.
        """
        fix = "check the path, its permissions and the free disk space"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "free disk space, or choose an output on another disk"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            fix = "choose an output in a folder that you may write to"
        added = f"; {unchanged}" if unchanged else ""
        return FileError(f"{what}: {error.strerror or error}", where=str(where), fix=fix + added)


def bug(error: BaseException) -> FuseconvError:
    """Wraps an unexpected exception in an error that asks the user to report a bug, and returns this error."""
    fix = "report it, with the output of `fuseconv --debug ...` and `fuseconv doctor`"
    return FuseconvError(f"a bug in fuseconv: {type(error).__name__}: {error}", fix=fix)


_FULL = re.compile(
    r"out of memory|can('t|not) allocate memory|not enough memory|unable to allocate|bad_alloc|failed to map segment"
    r"|can't start new thread",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an exception from Python, torch or CUDA means that memory ran out."""
    return isinstance(error, MemoryError) or bool(_FULL.search(str(error)))


def printable(text: str) -> str:
    r"""Escapes every terminal control character in a text, for example as `\x1b`, except newlines and tabs."""
    return _ACTIVE.sub(lambda found: _escape(found[0]), text)


def on_one_line(text: str) -> str:
    r"""Escapes control characters and newlines, so that a path or a name cannot imitate another line of the output."""
    return printable(text).replace("\n", r"\n")


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that `os.fsdecode` could not read
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

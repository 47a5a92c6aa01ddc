"""The result of a command: values for --json, a text rendering, and the exit status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.errors import FuseconvError


@dataclass(frozen=True)
class Outcome:
    """The result of a command.

    Attributes:
        result: plain JSON values.
        render: prints the result as text on stdout.
        error: the error, if the command failed after it had a result, such as a parity table with a failing row. Else
            None.
        quiet: whether only an error is printed as text.
        following: the commands that a user would run next, shown if there was no error.
    """

    result: Mapping[str, Any]
    render: Callable[[Console], None]
    error: FuseconvError | None = None
    quiet: bool = False
    following: tuple[str, ...] = ()

"""Defines what a command returns: its result as JSON values, a function that prints it as text, and an error."""

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
        result: the result as plain JSON values.
        render: prints the result as text on stdout.
        error: the error of a command that failed although it has a result, such as a parity table with a failing row.
            None if the command succeeded.
        quiet: whether to print the error only, and not the result as text. Set by `-q`.
        following: the command lines to suggest as next steps. They are printed on stderr if there is no error.
    """

    result: Mapping[str, Any]
    render: Callable[[Console], None]
    error: FuseconvError | None = None
    quiet: bool = False
    following: tuple[str, ...] = ()

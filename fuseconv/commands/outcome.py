"""What every command returns: values for --json, a rendering for people, and the exit status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.errors import FuseconvError


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        result: plain JSON values.
        render: prints the same for people, on stdout.
        error: what failed when the command could still report, a parity table with a failing row; None if all is well.
    """

    result: Mapping[str, Any]
    render: Callable[[Console], None]
    error: FuseconvError | None = None

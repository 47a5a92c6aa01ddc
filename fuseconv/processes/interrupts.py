"""Remembers Ctrl-C, because Python drops a KeyboardInterrupt in some places, and the process would go on."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_pressed = False


def remember() -> None:
    """Makes SIGINT raise KeyboardInterrupt, as Python's own handler does, and remembers the signal for `check`.

    Python drops an exception that is raised in a finalizer or in the callback of a weak reference, and C++ code may
    clear it. This happens while torch is imported. Use it only in a process that fuseconv owns. Changes nothing if
    SIGINT is ignored, as in a background job of a shell, or has another handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def check() -> None:
    """Raises KeyboardInterrupt if Ctrl-C was pressed since `remember`. Called between the steps of a command."""
    if _pressed:
        raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    global _pressed  # noqa: PLW0603 - a signal belongs to the process
    _pressed = True
    raise KeyboardInterrupt

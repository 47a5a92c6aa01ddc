"""The standard streams, whatever they lead to: closed, full, a pipe that nobody reads, or of another encoding."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from fuseconv.errors import printable

UNREAD = 141
"""The exit status when what reads the output is gone: what a shell says of a program that SIGPIPE ended."""


def prepare() -> None:
    """Makes the streams safe to write to, at the start of a command.

    A stream that is closed gives its number to the next file that is opened, and a library that prints would write into
    that; so something stands in its place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # its descriptor became another thing behind its back: it stays as it is
                stream.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("fuseconv")
    if not any(isinstance(handler, _Told) for handler in logger.handlers):
        logger.addHandler(_Told(logging.WARNING))


def say(text: str) -> None:
    """Writes a result to stdout.

    Raises:
        OSError: it cannot be written; BrokenPipeError when nobody reads it.
    """
    if sys.stdout is None:
        raise OSError("it is closed")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Writes what is to be read by people to stderr, made printable; where that cannot be, nobody can be told so."""
    _write(sys.stderr, printable(text) + "\n")


def tell_styled(text: str) -> None:
    """Writes words of our own, coloured by rich, to stderr; where that cannot be, nobody can be told so."""
    _write(sys.stderr, text + "\n")


def settle(status: int) -> int:
    """Empties the streams at the end of a command, and returns its exit status, or `UNREAD`."""
    unread = not _write(sys.stdout, "")
    _write(sys.stderr, "")
    return UNREAD if unread and not status else status


def _write(stream: TextIO | None, text: str) -> bool:
    """Writes and flushes; a stream that fails is led to nowhere, or Python would fail at its own end."""
    if stream is None:
        return True
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return False
    return True


class _Told(logging.Handler):
    """Tells what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tells one record."""
        tell(self.format(record))

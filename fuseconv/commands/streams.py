"""Safe standard streams: they may be closed, full, a broken pipe, or of another encoding."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

import click

from fuseconv.errors import printable

QUIET = "fuseconv.quiet"
"""The key in the context of a command under which it says that only errors are printed."""

UNREAD = 141
"""The exit status if the reader of the output has closed the pipe: that of a shell for a process ended by SIGPIPE."""


def prepare() -> None:
    """Makes the streams safe to write to, at the start of a command.

    A closed stream would give its file descriptor to the next file that is opened, and libraries that print would write
    into that file. Therefore it is replaced.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free descriptor
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # its descriptor now belongs to another file, which stays open
                stream.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("fuseconv")
    if not any(isinstance(handler, _Told) for handler in logger.handlers):
        logger.addHandler(_Told(logging.WARNING))


def is_quiet() -> bool:
    """Returns whether the command that runs prints errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def say(text: str) -> None:
    """Writes a result to stdout.

    Raises:
        OSError: the result cannot be written. BrokenPipeError if the reader has closed the pipe.
    """
    if sys.stdout is None:
        raise OSError("it is closed")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Writes text of others to stderr, escaped. Errors are ignored, because there is nowhere to report them."""
    _write(sys.stderr, printable(text) + "\n")


def tell_styled(text: str) -> None:
    """Writes fuseconv's own text to stderr, colored by rich. Errors are ignored."""
    _write(sys.stderr, text + "\n")


def settle(status: int) -> int:
    """Flushes the streams at the end of a command. Returns its exit status, or `UNREAD`."""
    unread = not _write(sys.stdout, "")
    _write(sys.stderr, "")
    return UNREAD if unread and not status else status


def _write(stream: TextIO | None, text: str) -> bool:
    """Writes and flushes. A stream that fails is redirected to null, because Python would fail again at exit."""
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
    """A log handler that writes to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one log record."""
        if record.levelno >= logging.ERROR or not is_quiet():
            tell(self.format(record))

"""Writes safely to the standard streams, which may be closed, full, a broken pipe, or not UTF-8."""

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
"""The key in the `meta` dict of click's context whose value says whether only errors are printed."""

UNREAD = 141
"""The exit status if the reader of the output closed the pipe. It is the shell's status for SIGPIPE."""


def prepare() -> None:
    """Makes the standard streams safe to write to, at the start of a command.

    Opens the null device in place of a closed stream. Otherwise, the next file to be opened would get the stream's file
    descriptor, and libraries that print would write to this file.
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
    """Returns whether the running command prints only errors."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def say(text: str) -> None:
    """Writes a result to stdout.

    Raises:
        OSError: the result cannot be written. This is a BrokenPipeError if the reader closed the pipe.
    """
    if sys.stdout is None:
        raise OSError("stdout is closed")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Escapes untrusted text and writes it to stderr. Ignores errors, because there is nowhere to report them."""
    _write(sys.stderr, printable(text) + "\n")


def tell_styled(text: str) -> None:
    """Writes fuseconv's own text, which rich has styled, to stderr. Ignores errors."""
    _write(sys.stderr, text + "\n")


def settle(status: int) -> int:
    """Flushes the streams at the end of a command. Returns `status`, or `UNREAD` if only the output was lost."""
    unread = not _write(sys.stdout, "")
    _write(sys.stderr, "")
    return UNREAD if unread and not status else status


def _write(stream: TextIO | None, text: str) -> bool:
    """Writes text and flushes. Returns False if this fails.

    Redirects a failing stream to the null device, because otherwise Python's flush at exit would fail again.
    """
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

"""Writes the log of a server to stderr: one line per event, as text or as a JSON object."""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener

from fuseconv.commands.streams import is_quiet, tell

MOST = 10_000
"""The maximum number of log records in the queue for stderr. If the queue is full, further records are dropped."""

NAMES = ("fuseconv.serving", "uvicorn.error")


class _Lines(logging.Handler):
    """A log handler that writes each record as text or as a JSON object.

    A record's message may be text, or an `Event` of `fuseconv.serving.tracing`, whose `fields` become JSON fields.
    """

    def __init__(self, level: int, as_json: bool) -> None:
        super().__init__(level)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            fields = getattr(record.msg, "fields", {"event": record.getMessage()})
            traced = {"traceback": trace} if trace else {}
            tell(json.dumps({"time": time, "level": level, **fields, **traced}))
        else:
            tell("\n".join(filter(None, [f"{time} {level} {record.getMessage()}", trace])))


class _Queued(QueueHandler):
    """Passes records to another thread, so that a slow reader of stderr does not delay requests."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):  # the reader of stderr is too slow
            self.queue.put_nowait(record)


@contextmanager
def log_lines(as_json: bool, *, everything: bool) -> Iterator[None]:
    """Returns a context manager that writes the log of a server to stderr until it exits.

    Args:
        as_json: whether each line is a JSON object. Otherwise it is text.
        everything: whether successful requests are logged too. With `-q`, only failures of the server are logged,
            whatever this value is.
    """
    level = logging.ERROR if is_quiet() else logging.INFO if everything else logging.WARNING
    handler = _Queued(queue.Queue(MOST))
    listener = QueueListener(handler.queue, _Lines(level, as_json))
    listener.start()
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level if logger.name == NAMES[0] else max(level, logging.WARNING))
        logger.propagate = False
    try:
        yield
    finally:
        listener.stop()
        for logger, (own, propagates) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(own)
            logger.propagate = propagates

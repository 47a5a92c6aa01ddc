"""Suppresses torch's log output while fuseconv calls torch, because fuseconv reports each failure itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Suppresses torch's log output within the block, unless the environment variable TORCH_LOGS is set.

    Suppresses the records of torch's loggers, and the partial graph that a failing export prints.
    """
    if "TORCH_LOGS" in os.environ:
        yield
        return
    from torch.export import _trace

    handlers = set(_handlers())
    for handler in handlers:
        handler.addFilter(_nothing)
    printed, vars(_trace)["print"] = vars(_trace).get("print", print), _unprinted
    try:
        yield
    finally:
        vars(_trace)["print"] = printed
        for handler in handlers:
            handler.removeFilter(_nothing)


def _handlers() -> Iterator[logging.Handler]:
    """Yields the handlers of torch's loggers that write to a stream.

    torch 2.11 has a class of its own for them, which is not a StreamHandler.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):  # hundreds of loggers, few with a handler
        if isinstance(logger, logging.Logger) and logger.handlers and name.partition(".")[0] == "torch":
            yield from filter(_writes, logger.handlers)


def _writes(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) or type(handler).__module__.partition(".")[0] == "torch"


def _nothing(record: logging.LogRecord) -> bool:  # noqa: ARG001 - the signature of a filter
    """A logging filter that rejects every log record."""
    return False


def _unprinted(*_: object, **__: object) -> None:
    """A replacement for `print` that prints nothing."""

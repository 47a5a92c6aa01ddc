"""Finds the line of a model's code at which torch.export records a guard on sizes."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch

from fuseconv.contract.spec import Contract
from fuseconv.graph.model_line import innermost
from fuseconv.sources import Subject

Export = Callable[[Subject, Sequence[torch.Tensor]], Any]

_SYMBOL = re.compile(r"create_symbol (s\d+) = \d+ for L\['(\w+)'\](?:\[(\d+)\])?\.size\(\)\[(\d+)\]")


def guard_line(
    names: Sequence[str], subject: Subject, tensors: Sequence[torch.Tensor], export: Export, guard: str = ""
) -> str:
    """Exports again, and returns the source line of a guard, or of the first that involves all dims.

    Returns the name of the model's class if there is no such line.

    Args:
        names: the names of the dims that the guard involves.
        subject: the model and its contract.
        tensors: the inputs of the failed export.
        export: the function that exports a subject with given inputs.
        guard: a regular expression for the guard in torch's symbols. If none matches, the first guard is taken.
    """
    trail = _Trail()
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.addHandler(trail)
    logger.setLevel(logging.INFO)
    try:
        export(subject, tensors)
    except Exception as error:  # noqa: BLE001 - it is known to fail; only the recorded guards matter
        logging.getLogger("fuseconv").debug("the second export failed: %s", error)
    finally:
        logger.removeHandler(trail)
        logger.setLevel(level)
    about = {symbol: _dim_at(place, subject) for symbol, place in trail.symbols.items()}
    lines = {
        one: line
        for one, line in reversed(trail.guards)
        if line and {about.get(symbol) for symbol in re.findall(r"s\d+", one)} >= set(names)
    }
    matching = (line for one, line in reversed(lines.items()) if guard and re.fullmatch(guard, one))
    return next(matching, None) or next(reversed(lines.values()), type(subject.module).__name__)


def _dim_at(place: tuple[str, int, int], subject: Subject) -> str | None:
    """Returns the name of the dim of an input's axis, or None if the axis does not exist or its size is static.

    Args:
        place: the parameter of forward, the position in it (for a list), and the axis.
        subject: the model and its contract.
    """
    parameter, position, axis = place
    known = list(inspect.signature(subject.module.forward).parameters)
    names = [call or name for call, name in zip_longest(subject.call, known)] if subject.call else known
    if parameter not in names:
        return None
    spec = _spec(subject.contract, names.index(parameter) + position)
    size = spec.shape[axis] if spec is not None and axis < len(spec.shape) else None
    return getattr(size, "name", None)


def _spec(contract: Contract, index: int) -> Any:
    return contract.inputs[index] if index < len(contract.inputs) else None


class _Trail(logging.Handler):
    """A handler for torch's log of symbolic shapes, which records the source line of each guard during export.

    Attributes:
        symbols: maps each symbol to the parameter of forward, the position in it (for a list), and the axis.
        guards: each guard's expression and source line. The line is empty if it is unknown.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.symbols: dict[str, tuple[str, int, int]] = {}
        self.guards: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if match := _SYMBOL.match(message):
            self.symbols[match[1]] = (match[2], int(match[3] or 0), int(match[4]))
        elif "[guard added]" in message and "suppressed" not in message:
            guard = message.removeprefix("eval ").partition(" [guard added]")[0]
            self.guards.append((guard, innermost(_stack(sys._getframe())) or ""))


def _stack(frame: FrameType | None) -> list[traceback.FrameSummary]:
    frames = []
    while frame is not None:
        frames.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]

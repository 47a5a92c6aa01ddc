"""Delta debugging: the shortest list of lines that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from .program import Model

Line = TypeVar("Line")


def minimised(lines: Sequence[Line], fails: Callable[[Sequence[Line]], bool], end: float) -> list[Line]:
    """Returns lines of which none can be left out, or as few as were found by `end`.

    Args:
        lines: what fails.
        fails: whether some of them still do.
        end: when to stop, in seconds of this process.
    """
    kept, size = list(lines), max(1, len(lines) // 2)
    while size and kept:
        at = len(kept)
        while at > 0 and time.process_time() < end:
            part = kept[: max(0, at - size)] + kept[at:]
            if len(part) < len(kept) and fails(part):
                kept = part
            at -= size
        size //= 2
    return kept


def minimised_model(model: Model, fails: Callable[[Model], bool], seconds: float) -> Model:
    """Returns a model with as few returned values, lines, inputs and targets as still fail in the same way."""
    if not seconds:
        return model
    end = time.process_time() + seconds

    def trying(change: Callable[[Sequence[str]], Model]) -> Callable[[Sequence[str]], bool]:
        return lambda some: bool(change(some).returned) and fails(change(some).cleaned())

    def returning(some: Sequence[str]) -> Model:
        return replace(model, returned=tuple(some))

    def holding(some: Sequence[str]) -> Model:
        return replace(model, lines=tuple(some))

    for target in model.targets:
        if fails(alone := replace(model, targets=(target,))):
            model = alone
            break
    model = returning(minimised(model.returned, trying(returning), end))
    if fails(alive := _alive(model)):
        model = alive
    while time.process_time() < end:
        fewer = minimised(model.lines, trying(holding), end)
        shortened = _shortened(holding(fewer), fails, end)
        if len(shortened.lines) == len(model.lines) and shortened == model:
            break
        model = shortened
    return model.cleaned()


def _alive(model: Model) -> Model:
    """Returns the model without the lines that nothing returned depends on, and without what is written in place."""
    needed, lines = set(model.returned), []
    for line in reversed(model.lines):
        name, _, value = line.partition(" = ")
        if name in needed:
            needed |= set(_words(value))
            lines.append(line)
    return replace(model, lines=tuple(reversed(lines))).cleaned()


def _shortened(model: Model, fails: Callable[[Model], bool], end: float) -> Model:
    """Tries, for each line, one of its operands in its place, and the values it is made of returned in its stead."""
    for at in range(len(model.lines) - 1, -1, -1):
        if time.process_time() > end or at >= len(model.lines):
            break
        name, _, value = model.lines[at].partition(" = ")
        if not value:
            continue
        words = [word for word in dict.fromkeys(_words(value)) if word != name]
        for word in words:
            renamed = tuple(_with(line, name, word) for line in model.lines[:at] + model.lines[at + 1 :])
            returned = tuple(word if one == name else one for one in model.returned)
            other = replace(model, lines=renamed, returned=returned)
            if fails(other.cleaned()):
                model = other
                break
    return model


def _words(text: str) -> list[str]:
    import re

    return re.findall(r"\b[vx]\d+\b", text)


def _with(line: str, name: str, other: str) -> str:
    import re

    return re.sub(rf"\b{name}\b", other, line)

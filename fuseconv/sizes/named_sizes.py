"""Collects the integers in a model's code, because the model may branch on comparisons of a size with an integer.

The byte code of the `forward` of each module, and of the functions that it calls, is read. Nothing is run.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

LARGEST_NAMED = 4096
"""The largest integer that is collected."""

MOST_FUNCTIONS = 256
"""The maximum number of functions whose byte code is read."""

_LIBRARIES = ("torch", "builtins")


def named_sizes(module: torch.nn.Module) -> list[int]:
    """Returns the distinct integers from 0 to `LARGEST_NAMED` in a model's code. Integers in comparisons come first.

    Args:
        module: the model. The code of torch and of Python's built-ins is skipped.
    """
    compared: dict[int, None] = {}
    others: dict[int, None] = {}
    for code in _codes(module):
        spans = [one.positions for one in dis.get_instructions(code) if one.opname in ("COMPARE_OP", "CONTAINS_OP")]
        for instruction in dis.get_instructions(code):
            if not instruction.opname.startswith("LOAD_"):
                continue
            within = any(_is_within(instruction.positions, span) for span in spans)
            for number in _numbers(instruction.argval):
                (compared if within else others).setdefault(number)
    return [*compared, *(number for number in others if number not in compared)]


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, tuple | frozenset):
        for part in value:
            yield from _numbers(part)
    elif type(value) is int and 0 <= value <= LARGEST_NAMED:
        yield value


def _is_within(place: Any, span: Any) -> bool:
    """Returns whether a source position lies within another. False if the line or column of either is unknown."""
    if place is None or span is None or None in (*place, *span):
        return False
    first, last = (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)
    return bool((span.lineno, span.col_offset) <= first and last <= (span.end_lineno, span.end_col_offset))


def _codes(module: torch.nn.Module) -> Iterator[CodeType]:
    """Yields the code of each `forward` and of the functions and methods that the code names, breadth-first."""
    waiting: list[Callable[..., Any]] = []
    for part in module.modules():
        forward = getattr(part, "forward", None)
        function = forward.__func__ if isinstance(forward, MethodType) else forward
        if isinstance(function, FunctionType) and not _is_library(function):
            waiting.append(function)
    owners = {part for part in (type(one) for one in module.modules()) if not _is_library(part)}
    read: set[CodeType] = set()
    while waiting and len(read) < MOST_FUNCTIONS:
        function = inspect.unwrap(waiting.pop(0))
        code = getattr(function, "__code__", None)
        if code is None or code in read:
            continue
        read.add(code)
        for nested in _nested(code):
            yield nested
            for name in nested.co_names:
                called = [getattr(function, "__globals__", {}).get(name)]
                called += [inspect.getattr_static(owner, name, None) for owner in owners]
                waiting += [one for one in called if isinstance(one, FunctionType) and not _is_library(one)]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _is_library(what: Any) -> bool:
    return str(getattr(what, "__module__", "")).partition(".")[0] in _LIBRARIES

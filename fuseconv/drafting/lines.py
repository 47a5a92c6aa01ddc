"""Writes the ops of a subgraph as lines of a rule, lines of an example, or Python code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Static, Values
from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import arguments, source_line
from fuseconv.matching.graph import is_getitem
from fuseconv.matching.literals import same

Spell = Callable[[Any], str]
"""A function that returns how to write a node outside the subgraph, a static size, a dtype, or an infinity."""


def in_rule(values: Values) -> Spell:
    """Returns a function that converts an operand or constant of the subgraph to text for a line of a rule file."""
    return _named(values, lambda value: SHORT_DTYPES[str(value)] if isinstance(value, torch.dtype) else repr(value))


def in_python(values: Values) -> Spell:
    """Returns a function that converts an operand or constant of the subgraph to text for Python source code."""
    return _named(values, lambda value: f'float("{value}")' if isinstance(value, float) else str(value))


def _named(values: Values, constant: Spell) -> Spell:
    """Returns a function that maps a node or static size to its name, and any other value to `constant(value)`."""

    def spell(value: Any) -> str:
        if isinstance(value, Node):
            return values.name_of(value)
        return value.name if isinstance(value, Static) else constant(value)

    return spell


def lines_of(subgraph: Subgraph, values: Values, spell: Spell | None = None) -> list[str]:
    """Returns one line per op of a subgraph, in execution order.

    Args:
        subgraph: the subgraph, whose ops are written.
        values: the names of the values of the subgraph.
        spell: converts an operand or constant to text. None to use `in_rule`.

    Raises:
        UnsupportedError: an argument cannot be written in a rule.
    """
    write = spell or in_rule(values)
    return [
        f"{_targets(node, values)} = {node.target}({', '.join(_words(node, values, write))})" for node in subgraph.calls
    ]


def targets_of(node: Node, values: Values) -> tuple[str, ...] | None:
    """Returns the names of an op's results, with `_` for unused results, or None for an op with a single result."""
    selected = {int(user.args[1]): user for user in node.users if is_getitem(user)}  # type: ignore[arg-type]
    if not selected:
        return None
    count = len(node.meta["val"])
    return tuple(values.name_of(selected[at]) if at in selected else "_" for at in range(count))


def given(node: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the positional and keyword-only arguments of an op call, by name. Omits redundant default values."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema, actual = node.target._schema.arguments, arguments(node)
    differs = {
        one.name for one in schema if not one.has_default_value() or not same(one.default_value, actual[one.name])
    }
    positional = [one.name for one in schema if not one.kwarg_only]
    while positional and positional[-1] not in differs:
        positional.pop()
    named = [one.name for one in schema if one.kwarg_only and one.name in differs]
    return {name: actual[name] for name in positional}, {name: actual[name] for name in named}


def _targets(node: Node, values: Values) -> str:
    several = targets_of(node, values)
    if several is None:
        return values.name_of(node)
    return ", ".join(several) + ("," if len(several) == 1 else "")


def _words(node: Node, values: Values, write: Spell) -> list[str]:
    def word(argument: str, value: Any, at: int = 0) -> str:
        if isinstance(value, Node):
            return values.name_of(value) if value in values.inner.values() else write(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(word(argument, item, place) for place, item in enumerate(value))}]"
        if (size := values.static.get((node, argument, at))) is not None:
            return write(size)
        if isinstance(value, torch.dtype) and str(value) in SHORT_DTYPES:
            return write(value)
        if isinstance(value, float) and math.isinf(value):
            return write(value)
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and not math.isnan(value)):
            return repr(value)
        what = f"the argument {argument}={value} of {node.target} cannot be written in a rule"
        raise UnsupportedError(
            what, where=source_line(node) or node.name, fix="choose nodes without this op between them"
        )

    positional, named = given(node)
    return [
        *(word(name, value) for name, value in positional.items()),
        *(f"{name}={word(name, value)}" for name, value in named.items()),
    ]

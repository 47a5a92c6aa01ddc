"""Creates the examples of a drafted rule: the subgraph as a separate program with sizes so small that it runs fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import short_dtype
from fuseconv.drafting.lines import in_rule, lines_of
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Static, Values

_DIMS = "nmklpqrs"
"""The names of the symbolic sizes of an example."""

_SMALL = (4, 6, 8, 10, 12, 14, 16, 24, 32, 48, 64)
"""The sizes that may replace larger sizes of the model. They are even, because models often halve a size."""

Fits = Callable[[list[str]], bool]
"""A function that returns whether the rule applies to an example, given as its lines."""


@dataclass(frozen=True)
class Example:
    """A program that consists of the subgraph alone.

    Attributes:
        lines: the lines of the program, in the syntax of a rule's examples.
        shapes: the shape of each tensor operand, by the name of the operand. Sizes are strings: a number, or the name
            of a symbolic size.
        sizes: the value of each size operand, by the name of the operand. Values are strings like the sizes in
            `shapes`.
        symbols: the names of the symbolic sizes. Empty if all sizes are static.
    """

    lines: list[str]
    shapes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, str]
    symbols: tuple[str, ...]


def example_of(subgraph: Subgraph, values: Values, fits: Fits) -> Example | None:
    """Returns an example with the smallest sizes found, or None if the rule applies to no example.

    Symbolic sizes stay symbolic. They become static if a size is an expression such as `2*s0`, or if the rule does not
    apply to the example with symbolic sizes.
    """
    known = [size for size in _sizes(values) if isinstance(size, int)]
    for symbols in (_symbols(values), {}):
        if symbols is None:
            continue
        static = known if symbols else [*known, *(_hint(size) for size in _sizes(values) if not isinstance(size, int))]

        program = partial(_program, subgraph, values, symbols)
        found = _smallest([*dict.fromkeys(size for size in static if size > 1)], program, fits)
        if found is not None:
            return found
    return None


def misses_of(values: Values) -> list[dict[str, Any]]:
    """Returns an example that the rule must not match, because an intermediate value has a user outside the match.

    Returns an empty list if the subgraph has no intermediate value.
    """
    intermediate = next((name for name in values.inner if name not in values.results), None)
    if intermediate is None:
        return []
    returned = f"return {', '.join([*values.results, intermediate])}"
    return [{"reason": "to have no user outside the match", "program": [returned]}]


def _smallest(sizes: list[int], program: Callable[[Mapping[int, int]], Example], fits: Fits) -> Example | None:
    """Replaces each size by the smallest size for which the rule still applies. Returns the resulting program.

    The largest size is replaced first. When a size is replaced, its multiples are scaled by the same factor. Returns
    None if the rule does not apply to the program with the original sizes.
    """
    chosen = {size: size for size in sizes}
    if not fits(program(chosen).lines):
        return None
    for size in sorted(sizes, reverse=True):
        for small in _SMALL:
            old = chosen[size]
            if small >= old:
                break
            trial = {one: now // old * small if now % old == 0 else now for one, now in chosen.items()}
            if len(set(trial.values())) == len(trial) and fits(program(trial).lines):
                chosen = trial
                break
    return program(chosen)


def _program(subgraph: Subgraph, values: Values, symbols: Mapping[str, str], small: Mapping[int, int]) -> Example:
    def size(value: Any) -> str:
        if isinstance(value, torch.SymInt) and symbols:
            return symbols[str(value)]
        static = _hint(value)
        return str(small.get(static, static))

    def spell(value: Any) -> str:
        if isinstance(value, Node) and (symbols or isinstance(value.meta["val"], torch.Tensor)):
            return values.name_of(value)
        if isinstance(value, Node | Static):
            return size(value.meta["val"] if isinstance(value, Node) else value.value)
        return in_rule(values)(value)

    shapes = {name: tuple(map(size, node.meta["val"].shape)) for name, node in values.tensors.items()}
    lines = [
        f"{name}: {'parameter ' if name in values.weights else ''}{dtype_in(values, node)}[{', '.join(shapes[name])}]"
        for name, node in values.tensors.items()
    ]
    if symbols:
        for name, value in values.sizes.items():
            if isinstance(value, Node):
                tensor, axis = _place(value, values)
                lines.append(f"{name} = aten.sym_size.int({tensor}, {axis})")
    lines += [*lines_of(subgraph, values, spell), f"return {', '.join(values.results)}"]
    sizes = {
        name: size(value.meta["val"] if isinstance(value, Node) else value) for name, value in values.sizes.items()
    }
    return Example(lines, shapes, sizes, tuple(symbols.values()))


def dtype_in(values: Values, node: Node) -> str:
    """Returns the dtype of an operand in examples: f64 if it is a float and all floats share a dtype, else its own."""
    dtype = node.meta["val"].dtype
    floating = {one.meta["val"].dtype for one in values.tensors.values() if one.meta["val"].is_floating_point()}
    return "f64" if dtype.is_floating_point and len(floating) == 1 else short_dtype(dtype)


def _sizes(values: Values) -> Iterator[Any]:
    for node in values.tensors.values():
        yield from node.meta["val"].shape
    for value in values.sizes.values():
        yield value.meta["val"] if isinstance(value, Node) else value


def _symbols(values: Values) -> dict[str, str] | None:
    """Returns a mapping from symbols to names of symbolic sizes, or None if an example cannot express the sizes.

    None is returned if the number of symbolic sizes is 0 or too large, if a size is an expression of others, or if a
    size occurs in no tensor operand.
    """
    found = dict.fromkeys(str(size) for size in _sizes(values) if isinstance(size, torch.SymInt))
    of_tensors = {str(size) for node in values.tensors.values() for size in node.meta["val"].shape}
    if not found or len(found) > len(_DIMS) or not all(one.isidentifier() and one in of_tensors for one in found):
        return None
    return dict(zip(found, _DIMS, strict=False))


def _place(size: Node, values: Values) -> tuple[str, int]:
    """Returns the name of a tensor operand whose shape contains a symbolic size, and the axis of this size."""
    return next(
        (name, axis)
        for name, node in values.tensors.items()
        for axis, one in enumerate(node.meta["val"].shape)
        if isinstance(one, torch.SymInt) and str(one) == str(size.meta["val"])
    )


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)

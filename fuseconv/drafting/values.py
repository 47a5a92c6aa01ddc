"""Names the values of a subgraph for use in a rule, in Python and in C++, and selects the operands of the new op."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES
from fuseconv.drafting.canonical import Canonical
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.graph.nodes import arguments
from fuseconv.matching.graph import is_getitem

_ACTIVATIONS = ("x", "y", "z", "u", "v")

_RESERVED = frozenset(
    {
        *keyword.kwlist,
        *DTYPES,
        *("_", "aten", "inf", "nan", "ops", "product", "return", "torch"),
        *("and", "bool", "case", "char", "class", "default", "do", "double", "float", "int", "long", "not", "or"),
        *("short", "signed", "switch", "this", "union", "unsigned", "void", "xor"),
    }
)
"""Words that cannot be the name of a value in a rule, in Python or in C++."""

_SIZES = frozenset(
    {"end", "length", "normalized_shape", "shape", "size", "sizes", "split_size", "split_sizes", "start"}
)
"""The names of the arguments of ATen ops that are sizes. Sizes vary between models with the same code, whereas an axis,
a stride or a number of channels per group does not."""

_SMALLEST = 2
_LARGEST = 1 << 31
"""The range of sizes, without the upper end. Larger values denote the end of an open slice, and smaller values a
broadcast axis. The model's code contains such values literally, so they do not vary between models."""


def is_size(argument: str, value: Any) -> bool:
    """Returns whether an integer in an argument of an ATen op is a size that may vary between models."""
    return argument in _SIZES and type(value) is int and _SMALLEST <= value < _LARGEST


class Static(NamedTuple):
    """A static size in an argument of an op, with the name of the operand that stands for the size."""

    value: int
    name: str


@dataclass(frozen=True)
class Values:
    """The values of a subgraph, with their names.

    Attributes:
        tensors: the tensor operands by name, in the order of the new op's parameters.
        sizes: the size operands by name. Symbolic sizes are nodes, and static sizes are integers.
        static: each static size with its name, by the op call, the argument's name and the position in the argument.
        inner: the nodes of the values that the subgraph computes, by name.
        results: the names of the subgraph's results, in order.
        weights: the names of the tensors that are parameters, buffers or constants of the model.
    """

    tensors: Mapping[str, Node]
    sizes: Mapping[str, Node | int]
    static: Mapping[tuple[Node, str, int], Static]
    inner: Mapping[str, Node]
    results: tuple[str, ...]
    weights: frozenset[str]

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the new op's operands: first the tensors, then the sizes."""
        return (*self.tensors, *self.sizes)

    def name_of(self, value: Node) -> str:
        """Returns the name of a node's value. Raises StopIteration if the node has no name."""
        tables: tuple[Mapping[str, Any], ...] = (self.tensors, self.sizes, self.inner)
        found: str = next(name for table in tables for name, one in table.items() if one is value)
        return found


def values_of(graph: Canonical, subgraph: Subgraph, *, shared: bool = True) -> Values:
    """Names the values of a subgraph and selects the operands of the new op.

    A weight is named as in the model, a computed value after its op, and an activation `x`, `y` and so on.

    Args:
        graph: the canonical graph of the program.
        subgraph: the subgraph whose values are named.
        shared: whether equal static sizes share one name. Sizes that are equal only by chance may differ in other
            matches.
    """
    names = _Names()
    tensors: dict[str, Node] = {}
    symbolic: list[Node] = []
    weights = []
    for node in subgraph.operands:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            symbolic.append(node)
        elif graph.workspace.is_state(node):
            name = names.new(_of_weight(graph.weights.get(node.name, "")))
            tensors[name] = node
            weights.append(name)
        else:
            tensors[names.new(*_ACTIVATIONS)] = node
    sizes: dict[str, Node | int] = {names.new("size"): size for size in symbolic}
    known: dict[int, Static] = {}
    static: dict[tuple[Node, str, int], Static] = {}
    for place, size in _sizes(subgraph):
        one = known.get(size) if shared else None
        static[place] = known[size] = one or Static(size, names.new("size"))
        sizes[static[place].name] = size
    inner = {names.new(_of_op(node)): node for node in _computed(subgraph)}
    results = tuple(name for one in subgraph.results for name, node in inner.items() if node is one)
    return Values(tensors, sizes, static, inner, results, frozenset(weights))


class _Names:
    def __init__(self) -> None:
        self.taken: set[str] = set()

    def new(self, *wanted: str) -> str:
        """Reserves and returns the first wanted name that is free, or the last wanted name with a number appended."""
        free = [name for name in wanted if name not in self.taken]
        name = free[0] if free else wanted[-1]
        number = 1
        while name in self.taken:
            number += 1
            name = f"{wanted[-1]}{number}"
        self.taken.add(name)
        return name


def _of_weight(target: str) -> str:
    return _word(target.rpartition(".")[2]) or "constant"


def _of_op(node: Node) -> str:
    call = node.args[0] if is_getitem(node) else node
    assert isinstance(call, Node)
    assert isinstance(call.target, torch._ops.OpOverload)
    return _word(call.target._schema.name.partition("::")[2])


def _word(text: str) -> str:
    word = re.sub(r"\W", "_", text).strip("_").lower()
    if not word or word[0].isdigit():
        return ""
    return f"{word}_value" if word in _RESERVED else word


def _computed(subgraph: Subgraph) -> Iterator[Node]:
    for node in subgraph.calls:
        selected = sorted(user for user in node.users if is_getitem(user))
        yield from selected or [node]


def _sizes(subgraph: Subgraph) -> Iterator[tuple[tuple[Node, str, int], int]]:
    for node in subgraph.calls:
        for argument, value in arguments(node).items():
            for at, item in enumerate(value if isinstance(value, list | tuple) else [value]):
                if is_size(argument, item):
                    yield (node, argument, at), item

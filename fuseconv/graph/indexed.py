"""Finds the sizes of the axes that an integer tensor indexes, such as the number of rows of an embedding table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuseconv.graph.nodes import arguments, facts_of, is_call, nodes_in


def indexed_sizes(index: torch.fx.Node) -> Iterator[Any]:
    """Yields the size, an int or a SymInt, of each tensor axis that the values of a node index.

    Includes indexing by the results of data-movement ops, such as views, that are applied to the node.
    """
    for user in index.users:
        if not is_call(user):
            if user.op == "call_function":  # selects a view from a list
                yield from indexed_sizes(user)
            continue
        given, moved = arguments(user), facts_of(user).moved
        if table := _TABLES.get(user.target._schema.name):  # type: ignore[union-attr]
            yield from (size for which, size in table(given) if which is index)
        if moved and index in nodes_in(given[moved]):
            yield from indexed_sizes(user)


def _size(table: Any, axis: int) -> Any:
    shape = table.meta["val"].shape
    return shape[axis] if shape else 1


def _rows(table: str, index: str) -> Callable[[Any], list[tuple[Any, Any]]]:
    return lambda given: [(given[index], _size(given[table], 0))]


def _along(given: Any) -> list[tuple[Any, Any]]:
    return [(given["index"], _size(given["self"], given["dim"]))]


def _several(given: Any) -> list[tuple[Any, Any]]:
    return [(index, _size(given["self"], axis)) for axis, index in enumerate(given["indices"]) if index is not None]


_TABLES: dict[str, Callable[[Any], list[tuple[Any, Any]]]] = {
    "aten::embedding": _rows("weight", "indices"),
    "aten::embedding_bag": _rows("weight", "indices"),
    **dict.fromkeys(
        (
            "aten::index_select",
            "aten::gather",
            "aten::scatter",
            "aten::scatter_add",
            "aten::index_add",
            "aten::index_copy",
        ),
        _along,
    ),
    "aten::index": _several,
    "aten::take": lambda given: [(given["index"], math.prod(given["self"].meta["val"].shape))],
    "aten::one_hot": lambda given: [(given["self"], given["num_classes"])] if given["num_classes"] > 0 else [],
}
"""Maps each indexing op to a function `(arguments) -> pairs`. Each pair contains an index argument and the size of the
axis that it indexes."""

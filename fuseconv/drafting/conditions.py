"""Derives the conditions of a drafted rule from the dtypes, ranks and sizes of the subgraph's operands."""

from __future__ import annotations

from collections.abc import Collection

from fuseconv.contract.dtypes import short_dtype
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Values
from fuseconv.graph.nodes import facts_of


def conditions_of(subgraph: Subgraph, values: Values) -> list[str]:
    """Returns the conditions of a rule for a subgraph. The subgraph itself satisfies all conditions.

    A floating-point operand may have any floating dtype in a match, but operands with the same floating dtype in the
    subgraph must have the same dtype in every match. Any other operand must have the same dtype as in the subgraph. All
    operands must have the same rank as in the subgraph, unless every op is elementwise.
    """
    dtypes = {name: node.meta["val"].dtype for name, node in values.tensors.items()}
    floating = [name for name, dtype in dtypes.items() if dtype.is_floating_point]
    conditions = [f"is_floating({', '.join(floating)})"] if floating else []
    for dtype in dict.fromkeys(dtypes[name] for name in floating):
        alike = [name for name in floating if dtypes[name] == dtype]
        conditions += [f"same_kind({', '.join(alike)})"] if len(alike) > 1 else []
    conditions += [f"dtype({name}) in {short_dtype(dtypes[name])}" for name in dtypes if name not in floating]
    if not all(facts_of(node).elementwise for node in subgraph.calls):
        conditions += [f"rank({name}) == {node.meta['val'].dim()}" for name, node in values.tensors.items()]
    return conditions


def sizes_of(values: Values) -> list[list[str]]:
    """Returns alternative lists of conditions on sizes, from no condition to the strictest list.

    The conditions are for replacements that do not support all sizes. All lists but the first require that sizes which
    are equal in the model are equal in every match, for an op that does not broadcast. The second list also limits the
    sizes of the weights to the sizes in the model, and the third list limits all sizes. This is for an op that keeps a
    layer in fast memory, which is limited.
    """
    every, of_weights = (
        {size for name in names for size in values.tensors[name].meta["val"].shape if isinstance(size, int)}
        for names in (values.tensors, values.weights)
    )
    return [[], _sizes(values, of_weights), _sizes(values, every)]


def _sizes(values: Values, bounded: Collection[int]) -> list[str]:
    first: dict[str, str] = {}
    conditions = []
    for name, node in values.tensors.items():
        for axis, size in enumerate(node.meta["val"].shape):
            here = f"size({name}, {axis})"
            if size == 1 and isinstance(size, int):
                conditions.append(f"{here} == 1")
            elif str(size) in first:
                conditions.append(f"{here} == {first[str(size)]}")
            elif isinstance(size, int) and size in bounded:
                conditions.append(f"{here} <= {size}")
            first.setdefault(str(size), here)
    return conditions

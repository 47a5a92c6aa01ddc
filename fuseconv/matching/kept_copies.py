"""Keeps the copies that a program returns: a rewrite makes no output an alias of another output, an input or a weight.

A rule may remove a copy, such as a clone or a product with 1, because the values are the same. But if the model returns
the copy, its caller may mutate it. Outputs that are aliases in the program itself stay aliases.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from fuseconv.graph.output_memory import clone_outputs, is_given, owners_of_outputs


def keep_copies(before: Graph, after: Graph) -> None:
    """Changes the rewritten graph so that it clones each output that is an alias only since the rewrite.

    Args:
        before: the graph of the program before the rewrite.
        after: the rewritten graph, with the same inputs and outputs.
    """
    old, new = owners_of_outputs(before), owners_of_outputs(after)
    cloned: list[bool] = []
    for at, owners in enumerate(new):
        earlier = [other for other in range(at) if not cloned[other]]
        aliased = any(owners & new[other] and not old[at] & old[other] for other in earlier)
        cloned.append(aliased or not _given(owners) <= _given(old[at]))
    if any(cloned):
        clone_outputs(after, cloned)


def _given(owners: frozenset[Node]) -> frozenset[str]:
    """Returns the names of the inputs and weights among the owners."""
    return frozenset(owner.name for owner in owners if is_given(owner))

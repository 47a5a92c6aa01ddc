"""What other strides of some values change further down: every reader is run again on fake tensors.

A rule may put views in the place of dense tensors, as the pieces of one merged product. Their readers see other
strides, and may hand them on; a reader that cannot take them, or a program that returns them, forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph import is_call, is_getitem, map_nodes, op_name
from fuseconv.predicates import Refused, same_sizes
from fuseconv.replacement import Results, key_of
from fuseconv.sizes import GuardError, all_sizes


def relaid(changed: Mapping[Node, Any], mode: Any, seen: Results | None = None) -> dict[Node, Any]:
    """Returns the fake values of the nodes that other strides reach.

    Args:
        changed: node to the fake value that takes the place of its own.
        mode: the fake mode of the program.
        seen: results of ops on fake tensors, used and added to; see `instantiate`.

    Raises:
        Refused: an op does not take the new strides, or they reach an output of the program.
    """
    fakes: dict[Node, Any] = {}
    queue = {user for node in changed for user in node.users}
    while queue:
        node = min(queue)
        queue.remove(node)
        if node in changed:
            continue
        if node.op == "output":
            raise Refused("strides that the program returns", "other strides at its output")
        new = _value(node, {**changed, **fakes}, mode, seen)
        if not _same_layout(new, node.meta.get("val")):
            fakes[node] = new
            queue.update(node.users)
    return fakes


def _value(node: Node, fakes: Mapping[Node, Any], mode: Any, seen: Results | None) -> Any:
    if not (is_call(node) or is_getitem(node)):
        raise Refused("readers that are plain ops", op_name(node.target))
    args, *rest = map_nodes([node.args, *node.kwargs.values()], lambda used: fakes.get(used, used.meta.get("val")))
    kwargs = dict(zip(node.kwargs, rest, strict=True))
    key = (node.target, key_of(args), key_of(list(kwargs.items()))) if seen is not None else ()
    if seen is not None and key in seen:
        return seen[key]
    try:
        with all_sizes(mode):
            result = node.target(*args, **kwargs)  # type: ignore[operator]  # is_call or is_getitem
    except (GuardError, RuntimeError, ValueError) as problem:
        raise Refused(f"strides that {node.name} takes", str(problem).strip().split("\n")[0]) from None
    if seen is not None:
        seen[key] = result
    return result


def _same_layout(new: Any, old: Any) -> bool:
    if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        if new.dtype != old.dtype or not same_sizes(new.shape, old.shape):
            raise Refused(
                "the dtype and shape it had", f"{new.dtype}{list(new.shape)} for {old.dtype}{list(old.shape)}"
            )
        return same_sizes(new.stride(), old.stride())
    if isinstance(new, list | tuple) and isinstance(old, list | tuple) and len(new) == len(old):
        return all(_same_layout(one, other) for one, other in zip(new, old, strict=True))
    return isinstance(new, int | torch.SymInt) and isinstance(old, int | torch.SymInt) and same_sizes([new], [old])

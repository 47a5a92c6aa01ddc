"""Propagates changed strides: runs the users of a value with new strides again on fake tensors.

A rule may replace dense tensors with views, such as the slices of a merged product. The users of the views see
different strides and may propagate these strides. The match is rejected if a user does not accept the new strides,
except a view to which nothing writes: it becomes a reshape. The match is also rejected if the new strides reach an
output of the program, unless the rule restores the strides of outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fuseconv.graph.proved_sizes import memory_order, same_size, same_sizes
from fuseconv.matching.graph import Workspace, is_call, is_getitem, map_nodes, op_name
from fuseconv.rulebook.refused import Refused

_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default


class Relaid(NamedTuple):
    """What becomes of a node downstream.

    Attributes:
        op: the op that it calls: its own, or `reshape` in the place of `view`.
        fake: its new fake value.
    """

    op: Any
    fake: Any


def relaid(changed: Mapping[Node, Any], workspace: Workspace, *, restores: bool = False) -> dict[Node, Relaid]:
    """Returns a mapping from each downstream node whose strides or op change to what becomes of it.

    Args:
        changed: maps each replaced node to its new fake value.
        workspace: the graph in which the new strides are propagated.
        restores: whether new strides may reach outputs that were dense, because the caller will call
            `restore_outputs`.

    Raises:
        Refused: an op does not accept the new strides, or they reach an output of the program.
    """
    changed = {node: fake for node, fake in changed.items() if not _same_layout(fake, node.meta.get("val"))}
    fakes, found = dict(changed), dict[Node, Relaid]()
    queue = [user for node in changed for user in node.users]
    heapify(queue)  # in execution order, so that the operands of a node come before it
    done = set(changed)
    while queue:
        node = heappop(queue)
        if node in done:
            continue
        done.add(node)
        if node.op == "output":
            if not (restores and all(_is_dense(operand) for operand in node.all_input_nodes if operand in fakes)):
                raise Refused("outputs with unchanged strides", "an output with other strides")
            continue
        new = _relaid(node, fakes, workspace)
        is_same = _same_layout(new.fake, node.meta.get("val"))
        if not is_same or new.op is not node.target:
            found[node] = new
        if not is_same:
            fakes[node] = new.fake
            for user in node.users:
                heappush(queue, user)
    return found


def restore_outputs(workspace: Workspace, before: Mapping[Node, Any]) -> None:
    """Copies each output of the program whose strides have changed to memory with its former strides.

    Args:
        workspace: the graph, to which the copies are added.
        before: maps each output node to its fake value before the change. Outputs whose strides changed must have been
            dense.
    """
    output = workspace.graph.output_node()

    def called(op: Any, node: Node, *args: Any, **kwargs: Any) -> Node:
        with workspace.graph.inserting_before(output):
            made = workspace.create(op, (node, *args), kwargs, f"contiguous_{node.name}", {})
        made.meta = {**node.meta, "val": workspace.run(op, (node.meta["val"], *args), kwargs)}
        return made

    for node, old in before.items():
        now = workspace.current(node)
        if _same_layout(now.meta["val"], old):
            continue
        order = memory_order(old)
        assert order is not None, "relaid refuses to change the strides of an output that was not dense"
        clone, permute = torch.ops.aten.clone.default, torch.ops.aten.permute.default
        if order == sorted(order):
            copy = called(clone, now, memory_format=torch.contiguous_format)
        else:
            turned = called(clone, called(permute, now, order), memory_format=torch.contiguous_format)
            copy = called(permute, turned, [order.index(axis) for axis in range(len(order))])
        output.replace_input_with(now, copy)


def _is_dense(node: Node) -> bool:
    return memory_order(node.meta.get("val")) is not None


def _relaid(node: Node, fakes: Mapping[Node, Any], workspace: Workspace) -> Relaid:
    if not (is_call(node) or is_getitem(node)):
        raise Refused("only op calls among the users of a value with new strides", op_name(node.target))
    args, *rest = map_nodes([node.args, *node.kwargs.values()], lambda used: fakes.get(used, used.meta.get("val")))
    kwargs = dict(zip(node.kwargs, rest, strict=True))
    try:
        return Relaid(node.target, workspace.run(node.target, args, kwargs))
    except (RuntimeError, ValueError) as problem:
        if node.target is _VIEW and not workspace.aliases.is_written(node):
            return Relaid(_RESHAPE, workspace.run(_RESHAPE, args, kwargs))
        raise Refused(f"strides that {node.name} accepts", str(problem).strip().split("\n")[0]) from None


def _same_layout(new: Any, old: Any) -> bool:
    if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        if new.dtype != old.dtype or not same_sizes(new.shape, old.shape):
            raise Refused(
                f"the unchanged dtype and shape {old.dtype}{list(old.shape)}", f"{new.dtype}{list(new.shape)}"
            )
        return same_sizes(new.stride(), old.stride())
    if isinstance(new, list | tuple) and isinstance(old, list | tuple) and len(new) == len(old):
        return all(_same_layout(one, other) for one, other in zip(new, old, strict=True))
    return isinstance(new, int | torch.SymInt) and isinstance(old, int | torch.SymInt) and same_size(new, old)

"""Finds the subgraph between first and last nodes: all ops on the paths between these, and the operands of the ops.

An op on a path between two ops of the subgraph is also on a path from a first node to a last node. Therefore the
subgraph is convex: no path leaves the subgraph and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fuseconv.drafting.canonical import Canonical
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.graph.aliases import viewed
from fuseconv.graph.nodes import draws, facts_of, find_op, op_name, source_line, why_no_op
from fuseconv.matching.graph import is_call, is_getitem

MOST_OPS = 64
"""The maximum number of ops in a subgraph, because a pattern has at most this many lines."""


@dataclass(frozen=True)
class Subgraph:
    """A part of a graph that a single op can replace.

    Attributes:
        calls: the nodes that call ops, in execution order.
        operands: the nodes outside the subgraph whose values the calls use, in the order of their first use.
        results: the nodes whose values may be used outside the subgraph. Each is an op call, or a getitem node that
            selects a result of an op call.
    """

    calls: tuple[Node, ...]
    operands: tuple[Node, ...]
    results: tuple[Node, ...]


def between(graph: Canonical, first: Sequence[str], last: Sequence[str]) -> Subgraph:
    """Returns the subgraph on the paths from the first nodes to the last nodes.

    Args:
        graph: the canonical graph of the program.
        first: the names of the first nodes.
        last: the names of the last nodes. Their values are the results.

    Raises:
        UsageError: a node does not exist or calls no op, no path connects the nodes, or an intermediate value has a
            user outside the subgraph.
        UnsupportedError: an op in the subgraph mutates memory, uses random numbers, or cannot be written in a rule; or
            a result shares the memory of an operand or of another result.
    """
    starts = {name: graph.node(name, "--from") for name in first}
    ends = {name: graph.node(name, "--to") for name in last}
    for name, node in starts.items():
        if is_getitem(node):
            fix = f"name {graph.workspace.name(node.all_input_nodes[0])}, or an op that uses {name}"
            raise UsageError(f"{name} selects a result of an op", where=f"--from {name}", fix=fix)
    after = _reached(starts.values(), lambda node: node.users)
    before = _reached(ends.values(), lambda node: node.all_input_nodes)
    _check_paths(starts, ends, after, before)
    inside = after & before
    for end in ends.values():  # if a last node has several results, their getitem nodes belong to the subgraph
        if is_call(end):
            inside |= {user for user in end.users if is_getitem(user)}
    nodes = sorted(inside)
    for node in nodes:
        _check_op(graph, node)
    results = tuple(node for node in nodes if _is_result(node, ends.values()))
    _check_users(graph, inside, results)
    calls = tuple(node for node in nodes if is_call(node))
    if len(calls) > MOST_OPS:
        what = f"the subgraph has {len(calls)} ops, and a pattern has at most {MOST_OPS} lines"
        raise UnsupportedError(what, where=_span(first, last), fix="choose nodes that are closer to each other")
    operands = tuple(dict.fromkeys(one for node in calls for one in node.all_input_nodes if one not in inside))
    for node in operands:
        if not isinstance(node.meta.get("val"), torch.Tensor | torch.SymInt) or _is_complex(node):
            name = graph.workspace.name(node)
            what = f"the subgraph uses {name}, which is neither a real tensor nor a size"
            raise UnsupportedError(what, where=source_line(node) or name, fix="begin after the ops that use this value")
    found = Subgraph(calls, operands, results)
    _check_memory(graph, found)
    return found


def _reached(nodes: Iterable[Node], near: Callable[[Node], Iterable[Node]]) -> set[Node]:
    seen = set(nodes)
    queue = list(seen)
    while queue:
        new = [other for other in near(queue.pop()) if other not in seen]
        seen.update(new)
        queue.extend(new)
    return seen


def _check_paths(starts: dict[str, Node], ends: dict[str, Node], after: set[Node], before: set[Node]) -> None:
    """Raises UsageError unless a path leads from each first node to a last node, and to each last node from a first."""
    behind = _reached(ends.values(), lambda node: node.users)
    for name, node in starts.items():
        if node not in before:
            swapped = node in behind and len(starts) == 1
            fix = "swap --from and --to" if swapped else "name two nodes of which one uses the value of the other"
            raise UsageError(f"no path leads from {name} to {', '.join(ends)}", where=f"--from {name}", fix=fix)
    for name, node in ends.items():
        if node not in after:
            what = f"no path leads from {', '.join(starts)} to {name}"
            raise UsageError(what, where=f"--to {name}", fix="add the --from nodes from which it is computed")


def _check_op(graph: Canonical, node: Node) -> None:
    name, where = graph.workspace.name(node), source_line(node)
    if is_getitem(node):
        return
    if not is_call(node):
        what = f"{name} calls {op_name(node.target)}, which computes a size or runs control flow"
        raise UnsupportedError(what, where=where, fix="choose nodes without this op between them")
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    reason = ""
    if draws(node):
        reason = "uses random numbers"
    elif facts_of(node).writes or graph.workspace.aliases.is_written(node):
        reason = "mutates memory, or its memory is mutated"
    elif free_unbacked_symbols(node.meta.get("val")):
        reason = "has a size that depends on data"
    elif node.is_impure(impure_random=False):
        reason = "has a side effect"
    elif find_op(str(op)) is None:
        reason = f"cannot be written in a rule ({why_no_op(str(op))})"
    elif not _tensors(node.meta.get("val")):
        reason = "computes no tensor"
    if reason:
        fix = "choose nodes without this op between them"
        raise UnsupportedError(f"{name} ({op}) {reason}", where=where, fix=fix)


def _tensors(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and all(isinstance(one, torch.Tensor) and not one.is_complex() for one in values)


def _is_complex(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_result(node: Node, ends: Iterable[Node]) -> bool:
    if node in ends:
        return not any(is_getitem(user) for user in node.users)
    return is_getitem(node) and node.all_input_nodes[0] in ends


def _check_users(graph: Canonical, inside: set[Node], results: Sequence[Node]) -> None:
    for node in sorted(inside - set(results)):
        for user in node.users:
            if user not in inside:
                name = graph.workspace.name(node)
                other = (
                    "it is an output of the program" if user.op == "output" else f"{graph.workspace.name(user)} uses it"
                )
                what = f"the value of {name} is used outside of the subgraph: {other}"
                fix = f"add --to {name}, so that it is a result too, or end the subgraph before it"
                raise UsageError(what, where=source_line(user) or name, fix=fix)


def _check_memory(graph: Canonical, found: Subgraph) -> None:
    """Raises UnsupportedError if a result shares memory with an operand or another result, as no op's result may."""
    owned: dict[Node, Node] = {}
    for result in found.results:
        for owner in _owners(result, found.operands):
            if owner in found.operands or owner in owned:
                name, other = (graph.workspace.name(one) for one in (result, owned.get(owner, owner)))
                what = f"{name} shares its memory with {other}, but each result of an op must have its own memory"
                fix = "end the subgraph at an op that computes a new value"
                raise UnsupportedError(what, where=source_line(result) or name, fix=fix)
            owned[owner] = result


def _owners(node: Node, operands: Sequence[Node]) -> set[Node]:
    """Returns the operands and op calls whose memory a view may share. For a node that is no view, the node itself."""
    shared = viewed(node.args[0]) if is_getitem(node) and isinstance(node.args[0], Node) else viewed(node)
    if node in operands or not shared:
        return {node}
    return {owner for one in shared for owner in _owners(one, operands)}


def _span(first: Sequence[str], last: Sequence[str]) -> str:
    return " ".join([*(f"--from {name}" for name in first), *(f"--to {name}" for name in last)])

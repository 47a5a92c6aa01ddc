"""Matchers for rewrites that no pattern can express: constant folding, common subexpressions, and in-place ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph.aten import facts
from fuseconv.graph.nodes import facts_of, written
from fuseconv.matching.attention import attention
from fuseconv.matching.attention_axes import attention_axes
from fuseconv.matching.early import activations
from fuseconv.matching.graph import arguments, is_call, is_repeatable, is_returned, map_nodes, nodes_in
from fuseconv.matching.match import Candidate, Match, check_apart, settle
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.search import Index
from fuseconv.matching.views import views
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import Call, Items, Line, Literal, Name, Term

_ATEN = torch.ops.aten
_FILLS = {_ATEN.fill.Scalar, _ATEN.fill.Tensor, _ATEN.tril.default, _ATEN.triu.default, _ATEN.zero.default}
"""Functional ops that write every element once, but are not elementwise."""

SMALL = 1 << 20
"""A constant of at most this size in bytes may be computed at conversion, however small its operands are."""


def constants(index: Index, rule: Rule) -> Iterator[Match]:
    """Yields at most one match: all values that do not depend on an input and are worth computing at conversion.

    A view of a parameter stays in the graph because it costs nothing. A value that is larger than `SMALL` and than its
    operands together, such as an expanded table, also stays in the graph, because it would enlarge the bundle. So do
    values that depend on each other if one of them may not be replaced: it is complex, returned, or written in place.
    """
    known: set[Node] = set()
    for node in index.workspace.graph.nodes:
        if _is_pure(node) and all(index.workspace.is_constant(used) or used in known for used in node.all_input_nodes):
            known.add(node)
    wanted = [node for node in known if not known.issuperset(node.users) and _is_worth_it(index, node, known)]
    matched = {node for end in wanted for node in _cone(end, known)}
    found = list(_computed(index, rule, matched))
    if not found:
        accepted = [part for part in _parts(matched) if any(_computed(index, rule, part))]
        found = list(_computed(index, rule, {node for part in accepted for node in part}))
    yield from found


def _computed(index: Index, rule: Rule, matched: set[Node]) -> Iterator[Match]:
    """Yields the match that computes these nodes at conversion, or nothing if the match is refused."""
    results = {node for node in matched if not matched.issuperset(node.users)}
    if matched and not any(is_returned(node) for node in results):
        yield from _restated(index, rule, sorted(matched), {node: node for node in results}, constant=True)


def _parts(nodes: set[Node]) -> list[set[Node]]:
    """Returns the parts of a set of nodes between which no value flows."""
    parts: list[set[Node]] = []
    for node in sorted(nodes):
        joined = [part for part in parts if not part.isdisjoint(node.all_input_nodes)]
        parts = [part for part in parts if part not in joined]
        parts.append({node}.union(*joined))
    return parts


def duplicates(index: Index, rule: Rule) -> Iterator[Match]:
    """Yields a match for each group of calls of the same op on the same arguments.

    Views cost nothing, so equal views are merged only where other ops on them are duplicates. Merging duplicates may
    turn their users into duplicates, which are yielded in the same round if the steps are executed in the required
    order.
    """
    classes: dict[str, list[Node]] = {}
    first: dict[Node, Node] = {}
    for node in index.workspace.graph.nodes:
        if _is_pure(node):
            named = map_nodes(list(arguments(node).items()), lambda used: first.get(used, used))
            same = classes.setdefault(repr((node.target, named)), [])
            same.append(node)
            first[node] = same[0]
    needed = _needed_views(classes.values(), first)
    merged: dict[Node, Node] = {}  # duplicate to the last node of its group: steps run in the order of the last nodes
    for same in classes.values():
        own = set(same[0].all_input_nodes)
        others = {used for node in same for used in node.all_input_nodes} - own
        in_order = all(used in merged and merged[used] < same[-1] for used in others)
        worth = not _is_skipped(same[0]) or same[0] in needed
        if len(same) > 1 and worth and in_order and sum(is_returned(node) for node in same) < 2:
            for match in _restated(index, rule, same, dict.fromkeys(same, same[0]), constant=False):
                merged.update(dict.fromkeys(same, same[-1]))
                yield match


def _needed_views(classes: Iterable[list[Node]], first: Mapping[Node, Node]) -> set[Node]:
    """Returns the first of each group of equal views on which duplicates depend, also by way of other views."""
    needed: set[Node] = set()
    queue = [node for same in classes if len(same) > 1 and not _is_skipped(same[0]) for node in same]
    while queue:
        node = queue.pop()
        others = set(node.all_input_nodes) - set(first[node].all_input_nodes)
        views = [used for used in others if _is_skipped(used) and first[used] is not used]
        needed.update(first[used] for used in views)
        queue.extend(views)
    return needed


def _is_skipped(node: Node) -> bool:
    return _is_pure(node) and _is_view(node) and _keeps_dtype(node)


def in_place(index: Index, rule: Rule) -> Iterator[Match]:
    """Yields a match that functionalizes each in-place op that writes all elements, if no other op sees the write."""
    for node in index.workspace.graph.nodes:
        if is_call(node) and (op := functional(node.target)) is not None:
            yield from _restated(index, rule, [node], {node: node}, constant=False, op=op)


def functional(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Returns the functional variant of an in-place op that writes all elements. Returns None for any other op."""
    twin = facts(op).functional
    if twin is None or facts(op).draws or facts(twin).shares:
        return None
    return twin if facts(twin).elementwise or twin in _FILLS else None


def _restated(
    index: Index,
    rule: Rule,
    matched: Sequence[Node],
    results: Mapping[Node, Node],
    *,
    constant: bool,
    op: torch._ops.OpOverload | None = None,
) -> Iterator[Match]:
    """Yields the match that replaces nodes by lines that call the same ops, or nothing if the match is refused.

    Args:
        index: the index of the graph that contains the nodes.
        rule: the rule to which the match belongs.
        matched: the matched nodes, in execution order.
        results: maps each replaced node to the matched node whose line computes its value.
        constant: whether the ops are evaluated at conversion.
        op: an op to call in place of the op of each matched node. None to call the same op.
    """
    captures: dict[str, Any] = {}
    lines: list[Line] = []
    inner = set(matched)

    def term(value: Any) -> Term:
        if isinstance(value, list | tuple):
            return Items(tuple(term(item) for item in value))
        if isinstance(value, Node):
            if value not in inner:
                captures[value.name] = value
            return Name(value.name)
        if value is None or isinstance(value, bool | int | str):
            return Literal(value)
        captures[name := f"literal_{len(captures)}"] = value
        return Name(name)

    for node in matched:
        if results.get(node, node) is node:
            kwargs = tuple((name, term(value)) for name, value in node.kwargs.items())
            call = Call(str(op or node.target), tuple(term(value) for value in node.args), kwargs)
            lines.append(Line((node.name,), False, call, constant))
        else:
            lines.append(Line((node.name,), False, Name(results[node].name)))
    found = Candidate(rule, frozenset(matched), captures, {node.name: node for node in results})
    try:
        check_apart(index, found.nodes, captures, found.results)
        yield settle(index, found, lines)
    except Refused:
        return


def _is_pure(node: Node) -> bool:
    """Returns whether a node calls an op that is a pure function of its inputs and returns one tensor."""
    if not is_call(node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    value = node.meta["val"]
    return is_repeatable(node.target, value) and not any(written(node))  # type: ignore[arg-type]  # is_call


def _is_view(node: Node) -> bool:
    return bool(facts_of(node).shares)


def _keeps_dtype(node: Node) -> bool:
    """Returns whether a node has the same dtype as one of its operands.

    False for a dtype conversion, which computes new values although its schema declares it a view.
    """
    return any(_dtype(used) == _dtype(node) for used in node.all_input_nodes)


def _dtype(node: Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _is_worth_it(index: Index, node: Node, known: set[Node]) -> bool:
    cone = _cone(node, known)
    if all(_is_view(inner) for inner in cone):
        return False
    sizes = node.meta["val"].shape
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return False
    read = {used for inner in cone for used in nodes_in(list(arguments(inner).values())) if used not in cone}
    tensors = [index.workspace.constant(used) for used in read]
    return _bytes(node.meta["val"]) <= max(SMALL, sum(_bytes(tensor) for tensor in tensors))


def _cone(node: Node, known: set[Node]) -> set[Node]:
    """Returns the set of a node and all nodes in `known` on which the node's value depends."""
    cone: set[Node] = set()
    queue = [node]
    while queue:
        at = queue.pop()
        if at not in cone:
            cone.add(at)
            queue.extend(used for used in at.all_input_nodes if used in known)
    return cone


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


FINDERS: Mapping[str, Callable[[Index, Rule], Iterator[Match | NearMiss]]] = {
    "activations": activations,
    "attention": attention,
    "attention-axes": attention_axes,
    "constants": constants,
    "duplicates": duplicates,
    "in-place": in_place,
    "views": views,
}
"""Maps each value of `finds` to the function that finds its matches."""

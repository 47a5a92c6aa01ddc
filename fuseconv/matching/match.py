"""Sites of a rule in a graph, and, for each place that is nearly one, the first reason why not.

Every way a pattern fits is judged: values used elsewhere, writes in place, `where`, and what the replacement gives on
fake tensors. Matching changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.spec import SHORT_DTYPES
from fuseconv.graph.proved_sizes import compare
from fuseconv.matching.gradient_flow import check_gradients
from fuseconv.matching.graph import Workspace, is_getitem, is_returned, nodes_in
from fuseconv.matching.layout import relaid
from fuseconv.matching.merge import spread
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern
from fuseconv.matching.replacement import check_same, instantiate, resolve
from fuseconv.matching.search import Index, Search, State, result_of
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import Apply, Line, Name, written


@dataclass(frozen=True)
class Site:
    """A place where a rule applies.

    Attributes:
        rule: the rule.
        nodes: the matched nodes, in the order they run; those that pick one of several results included.
        captures: name to node, literal, or list of them.
        results: pattern name to the node it replaces.
        saved: passes over memory it saves: ops matched less ops put in their place that make more than one element.
        replace: the lines put in their place.
        literals: floats that are taken for the rule's, each with the rule's, and differ by more than rounding.
    """

    rule: Rule
    nodes: tuple[Node, ...]
    captures: Mapping[str, Any]
    results: Mapping[str, Node]
    saved: int
    replace: tuple[str, ...]
    literals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Fit:
    """A way a pattern fits, with all that it asks for; not yet known is whether the replacement fits too."""

    rule: Rule
    nodes: frozenset[Node]
    captures: Mapping[str, Any]
    results: Mapping[str, Node]
    literals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Found:
    """What one rule finds at one anchor.

    Attributes:
        site: the site; for a rule that merges, the way it fits; None where there is neither.
        miss: why there is none.
        read: the nodes that were looked at: while they, their readers and their values stay, so does the answer.
    """

    site: Site | Fit | None
    miss: NearMiss | None
    read: frozenset[Node]


def match(index: Index, patterns: Sequence[Pattern]) -> tuple[list[Site], list[NearMiss]]:
    """Finds the sites of one rule.

    Args:
        index: the graph.
        patterns: the rule's alternatives.

    Returns:
        The sites, at most one for each anchor, or for each group of them that is merged; and for each anchor without
        one the nearest miss.

    Raises:
        RuleError: the pattern takes more than `BUDGET` comparisons at one node.
    """
    anchors = dict.fromkeys(anchor for pattern in patterns for anchor in index.calls.get(pattern.lines[-1].op, ()))
    answers = [judge(index, patterns, anchor) for anchor in anchors]
    fits = [found.site for found in answers if isinstance(found.site, Fit)]
    outcomes = [*(found.site for found in answers), *merged(index, fits)]
    missed = [found.miss for found in answers if found.miss is not None]
    missed += [outcome for outcome in outcomes if isinstance(outcome, NearMiss)]
    return [outcome for outcome in outcomes if isinstance(outcome, Site)], missed


def judge(index: Index, patterns: Sequence[Pattern], anchor: Node) -> Found:
    """Finds out what one rule does at one node: the first alternative, and way it fits, that may be replaced.

    Raises:
        RuleError: the pattern takes more than `BUDGET` comparisons.
    """
    nearest: NearMiss | None = None
    read: set[Node] = {anchor}
    for pattern in patterns:
        if not index.is_call_of(anchor, pattern.lines[-1].op):
            continue
        search = Search(index, pattern, anchor, read)
        refused: NearMiss | None = None
        for state in search.ways():
            try:
                found = fit(index, pattern, state, read)
                site = found if pattern.rule.merge else settle(index, found, pattern.rule.replacement)
                return Found(site, None, frozenset(read))
            except Refused as problem:
                refused = refused or search.refusal(problem)
        near = refused or search.nearest
        if nearest is None or near.found > nearest.found:
            nearest = near
    return Found(None, nearest, frozenset(read))


def fit(index: Index, pattern: Pattern, state: State, read: set[Node]) -> Fit:
    """Decides whether a way a pattern fits may be replaced, whatever by.

    Args:
        index: the graph.
        pattern: the alternative that fits.
        state: how it fits.
        read: the nodes that are looked at are added.

    Raises:
        Refused: it may not, and why.
    """
    rule, constants, nodes, captures = pattern.rule, index.workspace, state.nodes, state.captures
    values = {}
    for name, (number, position) in pattern.places.items():
        node = result_of(nodes[number], position) if pattern.lines[number].unpacks else nodes[number]
        if node is not None:
            values[name] = node
    matched = frozenset(state.matched()) | frozenset(
        user for number, node in nodes.items() if pattern.lines[number].unpacks for user in node.users
    )
    read |= matched
    results = {name: values[name] for name in rule.results if name in values}
    if outside := sorted(frozenset(results.values()) - matched):
        raise Refused("a product to replace", text_of(outside[0]))
    check_users(matched, frozenset(results.values()))
    check_apart(index, matched, captures, results)
    known = dict(captures)
    for name, term in pattern.literals.items():
        known[name] = resolve(term, known, constants)
    _check_where(rule, {**values, **known}, index)
    return Fit(rule, matched, known, results, state.rounded)


def check_apart(
    index: Index, matched: frozenset[Node], captures: Mapping[str, Any], results: Mapping[str, Node]
) -> None:
    """Checks that what a match reads is made outside it and is real, and that no write in place comes between.

    Raises:
        Refused: it is not so.
    """
    operands = frozenset(node for value in captures.values() for node in nodes_in(value))
    if inside := sorted(operands & matched):
        raise Refused("operands defined outside the match", inside[0].name)
    if complex_ := sorted(node for node in operands | matched if _is_complex(node)):
        raise Refused("real tensors, because rules are not checked on complex ones", text_of(complex_[0]))
    expected, found = index.aliases.refusal(matched, operands, frozenset(results.values()))
    if expected:
        raise Refused(expected, found)


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def settle(index: Index, found: Fit, lines: Sequence[Line]) -> Site:
    """Decides whether lines may stand in the place of what fits.

    Raises:
        Refused: they may not, and why.
    """
    matched, results = found.nodes, found.results
    operands = frozenset(node for value in found.captures.values() for node in nodes_in(value))
    replacement = instantiate(lines, found.captures, index.workspace)
    changed = {node: replacement.fakes[name] for name, node in results.items()}
    check_replaced(changed, index.workspace, found.rule.strides)
    for name, node in results.items():
        instead = replacement.same.get(name)
        if isinstance(instead, Node) and instead.op == "placeholder" and is_returned(node):
            raise Refused("a computed output", f"{instead.name}, which is an input")
    insertion_point(matched, operands, frozenset(results.values()))
    if index.workspace.trainable:
        check_gradients(matched, operands, results, replacement, index.workspace)
    made = sum(not (one.constant or _has_one_element(one.fake)) for one in replacement.instructions)
    saved = sum(not is_getitem(node) for node in matched) - made
    text = tuple(written(line) for line in lines)
    return Site(found.rule, tuple(sorted(matched)), found.captures, results, saved, text, found.literals)


def _has_one_element(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and all(isinstance(size, int) and size == 1 for size in fake.shape)


def merged(index: Index, fits: Sequence[Fit]) -> Iterator[Site | NearMiss]:
    """Yields, for each group of fits that agree on what their rule merges by, a site, or why it is none."""
    groups: dict[Any, list[Fit]] = {}
    for found in fits:
        groups.setdefault(repr([found.captures[name] for name in found.rule.merge]), []).append(found)
    for members in groups.values():
        if len(members) > 1:
            lines = spread(members[0].rule.replacement, members[0].rule.merge, len(members))
            together = Fit(
                members[0].rule,
                frozenset(node for member in members for node in member.nodes),
                _numbered([member.captures for member in members], members[0].rule.merge),
                _numbered([member.results for member in members], ()),
                tuple(pair for member in members for pair in member.literals),
            )
            try:
                check_apart(index, together.nodes, together.captures, together.results)
                yield settle(index, together, lines)
            except Refused as problem:
                yield _refusal(together, problem)


def _refusal(together: Fit, problem: Refused) -> NearMiss:
    last, count = max(together.nodes), len(together.nodes)
    return NearMiss(together.rule, last, problem.at or last, count, count, problem.words, refused=True)


def _numbered(members: Sequence[Mapping[str, Any]], shared: Collection[str]) -> dict[str, Any]:
    values = {f"{name}_{at}": value for at, member in enumerate(members) for name, value in member.items()}
    return {**values, **{name: members[0][name] for name in shared}}


def check_replaced(changed: Mapping[Node, Any], workspace: Workspace, strides: str) -> dict[Node, Any]:
    """Checks that values may stand for the nodes they replace, and returns what their strides change further down.

    Raises:
        Refused: they may not.
    """
    for node, new in changed.items():
        check_same(new, node, strides)
    return relaid(changed, workspace) if strides == "any" else {}


def insertion_point(matched: frozenset[Node], operands: frozenset[Node], results: frozenset[Node]) -> Node:
    """Returns the node before which the replacement goes: the last matched one, or the first to read a result.

    Raises:
        Refused: a result is read before an operand is there.
    """
    readers = [user for node in results for user in node.users if user not in matched]
    point = min([max(matched), *readers])
    late = [node for node in operands if node.op != "placeholder" and not node < point]
    if late:
        raise Refused(f"operands defined before {point.name}, the first user of a result", f"{late[0].name} after it")
    return point


def check_users(matched: frozenset[Node], results: frozenset[Node]) -> None:
    """Checks that nobody else reads the values inside a match, which vanish with it.

    Raises:
        Refused: somebody does.
    """
    for node in sorted(matched - results):
        for user in node.users:
            if user not in matched:
                other = "that it is an output of the program" if user.op == "output" else user.name
                raise Refused(f"{node.name} to have no user outside the match", other, at=node)


def _check_where(rule: Rule, values: Mapping[str, Any], index: Index) -> None:
    for text, condition in zip(rule.where, rule.conditions, strict=True):
        try:
            left = resolve(condition.left, values, index.workspace)
            right = None if condition.right is None else resolve(condition.right, values, index.workspace)
        except KeyError as missing:
            raise Refused(text, f"no value {missing} in this match") from None
        except Refused as problem:
            raise Refused(f"{text}: {problem.expected}", problem.found) from None
        if isinstance(condition.left, Apply) and condition.left.function in _OF_SHAPES:
            _check_shapes(text, [values.get(name) for name in _operands(condition.left)], index.workspace)
        if condition.comparison is not None:
            symbols = [_symbol(item) for item in right] if isinstance(right, list) else _symbol(right)
            if not compare(left, condition.comparison, symbols, index.workspace.ranges):
                operand = values.get(next(iter(_operands(condition.left)), ""), left)
                raise Refused(text, text_of(operand))


_OF_SHAPES = ("has_sizes", "same_shape", "same_value")
"""The predicates that compare shapes as they are known: a squeeze may make others of them where a size is 1."""


def _check_shapes(text: str, operands: Sequence[Any], workspace: Workspace) -> None:
    deciding = {operand: workspace.squeezed(operand) for operand in operands if isinstance(operand, Node)}
    if len(set(deciding.values())) > 1 or (len(deciding) == 1 and None not in deciding.values()):
        operand, node = next((operand, node) for operand, node in deciding.items() if node is not None)
        what = f"{text_of(operand)}, which has fewer axes if the size squeezed by {node.name} is 1"
        raise Refused(f"{text}: a shape of the same rank at every size", what)


def _operands(term: Apply | Name) -> Iterator[str]:
    if isinstance(term, Name):
        yield term.id
    else:
        yield from (inner.id for inner in term.args if isinstance(inner, Name))


def _symbol(value: Any) -> Any:
    """A dtype in `where` is compared by its short name."""
    if isinstance(value, torch.dtype):
        return SHORT_DTYPES[str(value)]
    return value

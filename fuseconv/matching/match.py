"""Finds the matches of a rule in a graph and, where the rule nearly matches, the reason why it does not.

A subgraph that fits the pattern is a match only if these checks pass: its intermediate values have no users outside it,
no in-place write interferes, the `where` conditions are proved, and the replacement gives the same dtypes and shapes on
fake tensors. Matching does not change the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.graph.proved_sizes import compare
from fuseconv.matching.gradient_flow import check_gradients
from fuseconv.matching.graph import Workspace, is_getitem, is_returned, nodes_in
from fuseconv.matching.layout import Relaid, relaid
from fuseconv.matching.merge import spread
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern
from fuseconv.matching.replacement import Instruction, check_same, instantiate, resolve
from fuseconv.matching.search import Index, Search, State, result_of
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import MAX_LENGTH, Apply, Line, Name, written


@dataclass(frozen=True)
class Match:
    """A match of a rule.

    Attributes:
        rule: the rule that matched.
        nodes: the matched nodes in execution order, including the getitem nodes that select one of several results.
        captures: maps each pattern variable to a node, a literal, or a list of these.
        results: maps each replaced name of the pattern to the node whose value is replaced.
        saved: the number of passes over memory that the replacement saves: the number of matched ops minus the number
            of inserted ops. Inserted ops that return a single element, only add or remove an axis of size 1, or are
            evaluated at conversion do not count.
        replace: the lines of SSA text whose ops replace the nodes.
        literals: pairs of a float in the graph and the float of the rule that it matches. Only pairs that differ by
            more than the rounding error are listed.
    """

    rule: Rule
    nodes: tuple[Node, ...]
    captures: Mapping[str, Any]
    results: Mapping[str, Node]
    saved: int
    replace: tuple[str, ...]
    literals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A subgraph that matches the pattern and satisfies the conditions. Its replacement has not been checked yet."""

    rule: Rule
    nodes: frozenset[Node]
    captures: Mapping[str, Any]
    results: Mapping[str, Node]
    literals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Found:
    """The result of trying one rule at one anchor.

    Attributes:
        match: the match, or the candidate for a rule that merges matches. None if the rule does not match.
        miss: the near miss if the rule does not match, else None.
        read: the nodes that were examined. The result stays valid until the operands, users or value of one of these
            nodes change.
    """

    match: Match | Candidate | None
    miss: NearMiss | None
    read: frozenset[Node]


def match(index: Index, patterns: Sequence[Pattern]) -> tuple[list[Match], list[NearMiss]]:
    """Finds all matches of one rule in a graph.

    Args:
        index: the index of the graph to search.
        patterns: the compiled alternatives of the rule.

    Returns:
        The matches, at most one per anchor or per group of merged matches; and the nearest miss of each anchor that has
        no match.

    Raises:
        RuleError: matching the pattern takes more than `BUDGET` comparisons at one node.
    """
    anchors = dict.fromkeys(anchor for pattern in patterns for anchor in index.calls.get(pattern.lines[-1].op, ()))
    answers = [match_at(index, patterns, anchor) for anchor in anchors]
    candidates = [found.match for found in answers if isinstance(found.match, Candidate)]
    outcomes = [*(found.match for found in answers), *merged(index, candidates)]
    missed = [found.miss for found in answers if found.miss is not None]
    missed += [outcome for outcome in outcomes if isinstance(outcome, NearMiss)]
    return [outcome for outcome in outcomes if isinstance(outcome, Match)], missed


def match_at(index: Index, patterns: Sequence[Pattern], anchor: Node) -> Found:
    """Tries all alternatives of one rule at one node, and returns the first match or, if there is none, the near miss.

    Raises:
        RuleError: matching the pattern takes more than `BUDGET` comparisons.
    """
    nearest: NearMiss | None = None
    read: set[Node] = {anchor}
    for pattern in patterns:
        if not index.is_call_of(anchor, pattern.lines[-1].op):
            continue
        search = Search(index, pattern, anchor, read)
        refused: NearMiss | None = None
        for state in search.ways():
            fits = False
            try:
                found = candidate(index, pattern, state, read)
                fits = True
                outcome = found if pattern.rule.merge else settle(index, found, pattern.rule.replacement)
                return Found(outcome, None, frozenset(read))
            except Refused as problem:
                refused = refused or search.refusal(problem, fits=fits)
        near = refused or search.nearest
        if nearest is None or near.found > nearest.found:
            nearest = near
    return Found(None, nearest, frozenset(read))


def candidate(index: Index, pattern: Pattern, state: State, read: set[Node]) -> Candidate:
    """Makes all checks that do not depend on the replacement, and returns the candidate that passed them.

    Args:
        index: the index of the graph that contains the subgraph.
        pattern: the alternative of the rule that fits the subgraph.
        state: the nodes and captures that the search found.
        read: a set to which the examined nodes are added.

    Raises:
        Refused: the matched nodes may not be replaced. The exception gives the reason.
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
        raise Refused("a multiplication whose result is replaced", text_of(outside[0]))
    check_users(matched, frozenset(results.values()))
    check_apart(index, matched, captures, results)
    known = dict(captures)
    for name, term in pattern.literals.items():
        known[name] = resolve(term, known, constants)
    check_where(rule, {**values, **known}, index.workspace)
    return Candidate(rule, matched, known, results, state.rounded)


def check_apart(
    index: Index, matched: frozenset[Node], captures: Mapping[str, Any], results: Mapping[str, Node]
) -> None:
    """Checks the nodes and operands of a match.

    Raises:
        Refused: an operand is computed inside the match, a tensor is complex, or an in-place write interferes.
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


def settle(index: Index, found: Candidate, lines: Sequence[Line]) -> Match:
    """Makes all checks that depend on the replacement, and returns the match.

    Args:
        index: the index of the graph that contains the candidate.
        found: the candidate to check.
        lines: the lines to substitute for the nodes of the candidate.

    Raises:
        Refused: the lines may not be substituted. The exception gives the reason.
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
    made = sum(not (one.constant or _is_free(one)) for one in replacement.instructions)
    saved = sum(not is_getitem(node) for node in matched) - made
    text = tuple(written(line) for line in lines)
    return Match(found.rule, tuple(sorted(matched)), found.captures, results, saved, text, found.literals)


def _is_free(one: Instruction) -> bool:
    """Returns whether an inserted op only adds or removes an axis of size 1, or returns a single element."""
    fake = one.fake
    if str(one.op) in ("aten.unsqueeze.default", "aten.squeeze.dim"):
        return True
    return isinstance(fake, torch.Tensor) and all(isinstance(size, int) and size == 1 for size in fake.shape)


def merged(index: Index, candidates: Sequence[Candidate]) -> Iterator[Match | NearMiss]:
    """Yields, for each group of candidates that agree on the merge variables, one match or the near miss.

    A candidate that agrees with no other candidate is ignored. A group is halved until no line of its replacement is
    too long for a rule.
    """
    groups: dict[Any, list[Candidate]] = {}
    for found in candidates:
        groups.setdefault(repr([found.captures[name] for name in found.rule.merge]), []).append(found)
    for group in groups.values():
        for members, lines in _parts(group):
            together = Candidate(
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


def _parts(group: Sequence[Candidate]) -> Iterator[tuple[Sequence[Candidate], tuple[Line, ...]]]:
    """Yields the parts of a group that can be merged, with the lines that replace them."""
    if len(group) > 1:
        lines = spread(group[0].rule.replacement, group[0].rule.merge, len(group))
        if all(len(written(line)) <= MAX_LENGTH for line in lines):
            yield group, lines
        else:
            middle = (len(group) + 1) // 2
            yield from _parts(group[:middle])
            yield from _parts(group[middle:])


def _refusal(together: Candidate, problem: Refused) -> NearMiss:
    last, count = max(together.nodes), len(together.nodes)
    return NearMiss(together.rule, last, problem.at or last, count, count, problem.words, refused=True)


def _numbered(members: Sequence[Mapping[str, Any]], shared: Collection[str]) -> dict[str, Any]:
    values = {f"{name}_{at}": value for at, member in enumerate(members) for name, value in member.items()}
    return {**values, **{name: members[0][name] for name in shared}}


def check_replaced(changed: Mapping[Node, Any], workspace: Workspace, strides: str) -> dict[Node, Relaid]:
    """Checks that new values may replace nodes, and returns what becomes of the nodes whose strides change.

    Args:
        changed: maps each replaced node to its new fake value.
        workspace: the graph that contains the nodes.
        strides: the field `strides` of the rule.

    Returns:
        A mapping from each downstream node whose strides or op change to its new op and fake value.

    Raises:
        Refused: a value differs in dtype, device or shape, or its strides are not allowed to change.
    """
    for node, new in changed.items():
        check_same(new, node, strides)
    return {} if strides == "same" else relaid(changed, workspace, restores=strides == "restored")


def insertion_point(matched: frozenset[Node], operands: frozenset[Node], results: frozenset[Node]) -> Node:
    """Returns the node before which the replacement is inserted.

    This node is the last matched node, or the first user of a result outside the match if that user comes earlier.

    Raises:
        Refused: a result is used before an operand is computed.
    """
    users = [user for node in results for user in node.users if user not in matched]
    point = min([max(matched), *users])
    late = [node for node in operands if node.op != "placeholder" and not node < point]
    if late:
        raise Refused(
            f"operands defined before {point.name}, the first user of a result", f"{late[0].name}, defined after it"
        )
    return point


def check_users(matched: frozenset[Node], results: frozenset[Node]) -> None:
    """Checks that the intermediate values of a match have no users outside it. The replacement removes these values.

    Raises:
        Refused: an intermediate value has a user outside the match.
    """
    for node in sorted(matched - results):
        for user in node.users:
            if user not in matched:
                other = "that it is an output of the program" if user.op == "output" else user.name
                raise Refused(f"{node.name} to have no user outside the match", other, at=node)


def check_where(rule: Rule, values: Mapping[str, Any], workspace: Workspace) -> None:
    """Checks the conditions of a rule, given the values of the names in the rule.

    Raises:
        Refused: a condition cannot be proved.
    """
    for text, condition in zip(rule.where, rule.conditions, strict=True):
        try:
            left = resolve(condition.left, values, workspace)
            right = None if condition.right is None else resolve(condition.right, values, workspace)
        except KeyError as missing:
            raise Refused(text, f"no value {missing} in this match") from None
        except Refused as problem:
            raise Refused(f"{text}: {problem.expected}", problem.found) from None
        if isinstance(condition.left, Apply) and FUNCTIONS[condition.left.function].shapes:
            _check_shapes(text, [values.get(name) for name in _operands(condition.left)], workspace)
        if condition.comparison is not None:
            symbols = [_symbol(item) for item in right] if isinstance(right, list) else _symbol(right)
            if not compare(left, condition.comparison, symbols, workspace.ranges):
                operand = values.get(next(iter(_operands(condition.left)), ""), left)
                raise Refused(text, text_of(operand))


def _check_shapes(text: str, operands: Sequence[Any], workspace: Workspace) -> None:
    deciding = {operand: workspace.squeezed(operand) for operand in operands if isinstance(operand, Node)}
    if len(set(deciding.values())) > 1 or (len(deciding) == 1 and None not in deciding.values()):
        operand, node = next((operand, node) for operand, node in deciding.items() if node is not None)
        what = f"{text_of(operand)}, which loses an axis if the size that {node.name} squeezes is 1"
        raise Refused(f"{text}: a shape with the same rank for all sizes", what)


def _operands(term: Apply | Name) -> Iterator[str]:
    if isinstance(term, Name):
        yield term.id
    else:
        yield from (inner.id for inner in term.args if isinstance(inner, Name))


def _symbol(value: Any) -> Any:
    """Returns the short name of a dtype, which `where` conditions compare, or any other value unchanged."""
    if isinstance(value, torch.dtype):
        return SHORT_DTYPES[str(value)]
    return value

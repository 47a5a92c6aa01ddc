"""The matches of all rules at all nodes. After a change of the graph, only the affected nodes are searched again.

A search depends on the nodes that it compares, the values that it binds, and the users of both. Each result records
these nodes. Some rules depend on more of the graph: on everything from which a mask is computed, on all users of a
value whose strides change, or on the whole graph. These rules are evaluated at the start, and again whenever the other
rules have reached a fixpoint: first the rules for chains of views, so that the rest see short chains only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from fuseconv.errors import FuseconvError, is_out_of_memory
from fuseconv.matching.graph import Workspace
from fuseconv.matching.match import Candidate, Found, Match, match, match_at, merged
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern
from fuseconv.matching.product import PRODUCT
from fuseconv.matching.search import Index
from fuseconv.matching.unforeseen import described
from fuseconv.matching.whole import FINDERS
from fuseconv.rulebook.rule import Rule

NEAR, VIEWS, ALL = range(3)
"""Which rules are evaluated: those that depend on the nodes that they record, also those for views, or all."""


@dataclass
class _Kept:
    """One rule and its current results.

    Attributes:
        rule: the rule whose matches are kept.
        order: the position of the rule among the rules of the stage, which breaks ties.
        patterns: the alternatives of the rule.
        reach: NEAR, or VIEWS or ALL if the rule depends on nodes that its results do not record. Then all results are
            recomputed.
        live: the alternatives that may match. For a canonical rule, these are the alternatives whose ops all occur in
            the graph.
        found: maps each anchor to the result of the search there.
        stale: the anchors at which the search must run again, because the graph has changed.
        whole: the matches that have no single anchor.
        refused: the near misses that have no single anchor, such as groups of matches that may not be merged.
    """

    rule: Rule
    order: int
    patterns: tuple[Pattern, ...]
    reach: int
    live: tuple[Pattern, ...] = ()
    found: dict[Node, Found] = field(default_factory=dict)
    stale: set[Node] = field(default_factory=set)
    whole: list[Match] = field(default_factory=list)
    refused: list[NearMiss] = field(default_factory=list)


class Worklist:
    """The current matches of some rules in a graph that is being rewritten."""

    def __init__(self, workspace: Workspace, rules: Sequence[tuple[Rule, tuple[Pattern, ...]]]) -> None:
        workspace.take_changed()
        self.workspace = workspace
        self.index = Index(workspace)
        self.rules = [
            _Kept(rule, order, patterns, _reach(rule, patterns)) for order, (rule, patterns) in enumerate(rules)
        ]
        self._dependents: dict[Node, set[tuple[int, Node]]] = {}
        self._anchored: dict[Any, dict[int, None]] = {}

    def matches(self, reach: int) -> list[tuple[int, Match]]:
        """Returns the current matches of the rules up to a reach as (position of the rule, match)."""
        self._update()
        asked = [kept for kept in self.rules if kept.reach <= reach]
        for kept in asked:
            self._ask(kept)
        return [(kept.order, match) for kept in asked for match in _matches(kept)]

    def misses(self) -> Iterator[NearMiss]:
        """Yields the near misses of each rule, in graph order.

        Alternatives of canonical rules that were skipped because exactly one of their ops does not occur in the graph
        are searched now, because the missing op may be the only difference.
        """
        for kept in self.rules:
            misses = [kept.found[anchor].miss for anchor in sorted(kept.found)]
            dormant = [pattern for pattern in kept.patterns if len(_absent(self.index, pattern)) == 1]
            misses += match(self.index, dormant)[1] if kept.rule.stage == "canonical" else []
            yield from (miss for miss in misses if miss is not None)
            yield from kept.refused

    def _update(self) -> None:
        """Updates the index for nodes that changed, and marks the results that depend on these nodes as stale."""
        changed = self.workspace.take_changed()
        everywhere = self.index.update(changed)
        for node in changed:
            for order, anchor in self._dependents.pop(node, ()):
                self.rules[order].stale.add(anchor)
        for kept in self.rules:
            live = tuple(pattern for pattern in kept.patterns if _may_be_there(self.index, pattern))
            if everywhere or live != kept.live:
                kept.live = live
                kept.stale.update(kept.found)
                for pattern in live:
                    op: Any = pattern.lines[-1].op
                    kept.stale.update(self.index.calls.get(op, ()))
                    self._anchored.setdefault(op, {})[kept.order] = None
        for node in changed:
            for op in (node.target, PRODUCT):
                for order in self._anchored.get(op, ()):
                    self.rules[order].stale.add(node)

    def _ask(self, kept: _Kept) -> None:
        index, rule = self.index, kept.rule
        if rule.finds is not None:
            _keep(kept, FINDERS[rule.finds](index, rule))
            return
        if kept.reach != NEAR:
            kept.stale.update(kept.found)
        for anchor in kept.stale:
            kept.found.pop(anchor, None)
            if anchor._erased or not any(index.is_call_of(anchor, pattern.lines[-1].op) for pattern in kept.live):
                continue
            found = kept.found[anchor] = _try_match_at(index, kept, anchor)
            if kept.reach == NEAR:
                for node in found.read:
                    self._dependents.setdefault(node, set()).add((kept.order, anchor))
        kept.stale.clear()
        if rule.merge:
            candidates = [kept.found[anchor].match for anchor in sorted(kept.found)]
            _keep(kept, merged(index, [one for one in candidates if isinstance(one, Candidate)]))


def _keep(kept: _Kept, found: Iterable[Match | NearMiss]) -> None:
    outcomes = list(found)
    kept.whole = [one for one in outcomes if isinstance(one, Match)]
    kept.refused = [one for one in outcomes if isinstance(one, NearMiss)]


def _try_match_at(index: Index, kept: _Kept, anchor: Node) -> Found:
    """Searches for one rule at one node and returns the result. An unexpected error becomes a near miss.

    The search only reads the graph, so that such an error affects only this match.
    """
    try:
        return match_at(index, kept.live, anchor)
    except FuseconvError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        found = f"{described(error)}; the match is skipped"
        count = max(2, len(kept.patterns[0].lines))
        words = lambda: ("a search without errors", found)  # noqa: E731
        near = NearMiss(kept.rule, anchor, anchor, count, count, words, refused=True, rejected=True)
        return Found(None, near, frozenset((anchor,)))


def _matches(kept: _Kept) -> Iterator[Match]:
    yield from (found.match for found in kept.found.values() if isinstance(found.match, Match))
    yield from kept.whole


def _reach(rule: Rule, patterns: tuple[Pattern, ...]) -> int:
    if rule.finds == "views":
        return VIEWS
    far = rule.finds or rule.merge or rule.strides != "same" or any(one.follows for one in patterns[:1])
    return ALL if far else NEAR


def _may_be_there(index: Index, pattern: Pattern) -> bool:
    """Returns whether to search for a pattern. False only for a canonical rule with an op that the graph lacks."""
    return pattern.rule.stage != "canonical" or not _absent(index, pattern)


def _absent(index: Index, pattern: Pattern) -> frozenset[Any]:
    """Returns the ops of a pattern that do not occur in the graph."""
    return pattern.ops.difference(index.calls)

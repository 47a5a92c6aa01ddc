"""Searches for a pattern at one node: finds every way in which the pattern matches or, if none, the nearest miss.

The search starts with the last line of the pattern, at a node called the anchor, and follows operands backwards. If a
line is connected only through a value already found, the search follows the users of that value. Operands of
commutative ops are tried in both orders.

A pattern line, or line, is one op call in the `match` section of a rule. A term is an argument of a line. A goal is a
pending comparison of a term with an argument in the graph. A state is the partial match found so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fuseconv.matching.graph import Workspace, arguments, is_call, is_getitem, nodes_in, op_name
from fuseconv.matching.literals import differs, same, same_literal
from fuseconv.matching.near_miss import NearMiss, Words
from fuseconv.matching.pattern import OF_RESULT, Default, Expected, Pattern
from fuseconv.matching.product import PRODUCT, cuts, multiplies
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import refuse
from fuseconv.rulebook.rule_text import Items, Literal, Name

BUDGET = 20_000
"""The maximum number of comparisons per anchor. A pattern that requires more could stall on a large graph."""


class Index:
    """An index of a graph for the matcher.

    Attributes:
        workspace: the graph that is indexed.
        calls: maps each op to the nodes that call the op. `PRODUCT` maps to all multiplications.
        aliases: the alias analysis, which records the memory that the graph mutates.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.aliases = workspace.aliases
        self.calls: dict[Any, dict[Node, None]] = {
            op: dict.fromkeys(nodes) for op, nodes in _by_op(workspace.graph.nodes).items()
        }
        self._arguments: dict[Node, dict[str, Any]] = {}
        self._users: dict[Node, dict[Any, list[Node]]] = {}

    def update(self, changed: Collection[Node]) -> bool:
        """Updates the index for nodes that are new or erased, or whose operands, users or values changed.

        Returns:
            Whether the set of in-place writes changed. If so, the search results of all nodes may be outdated.
        """
        for node in changed:
            self._arguments.pop(node, None)
            self._users.pop(node, None)
            for op in (node.target, PRODUCT):
                if self.is_call_of(node, op) and not node._erased:
                    self.calls.setdefault(op, {})[node] = None
                elif op in self.calls:
                    self.calls[op].pop(node, None)
                    if not self.calls[op]:
                        del self.calls[op]
        before, self.aliases = self.aliases, self.workspace.aliases
        return before is not self.aliases

    @staticmethod
    def is_call_of(node: Node, op: Any) -> bool:
        """Returns whether a node calls an op. For `PRODUCT`, returns whether the node is a multiplication."""
        return multiplies(node) if op is PRODUCT else is_call(node) and node.target is op

    def arguments(self, node: Node) -> Mapping[str, Any]:
        """Returns all arguments of an op call, by their names in the schema."""
        if node not in self._arguments:
            self._arguments[node] = arguments(node)
        return self._arguments[node]

    def users_calling(self, node: Node, op: Any) -> Sequence[Node]:
        """Returns the users of a value that call an op.

        The result is cached, because a value such as an attention mask may have a user in every layer.
        """
        if node not in self._users:
            self._users[node] = _by_op(node.users)
        return self._users[node].get(op, ())


def _by_op(nodes: Iterable[Node]) -> dict[Any, list[Node]]:
    calls: dict[Any, list[Node]] = {}
    for node in nodes:
        if is_call(node):
            calls.setdefault(node.target, []).append(node)
        if multiplies(node):
            calls.setdefault(PRODUCT, []).append(node)
    return calls


class State(NamedTuple):
    """The partial match found so far.

    Attributes:
        nodes: maps the number of each matched line to its node.
        captures: maps each pattern variable to a node, a literal, or a list of these.
        products: maps the number of each product line to its multiplication nodes. A line that matches a single value
            times 1 has no such nodes.
        rounded: pairs of a float in the graph and the float of the rule that it matches, if they differ by more than
            the rounding error.
        ranks: maps each pattern variable that is an axis to the rank of the tensor that has the axis.
    """

    nodes: Mapping[int, Node]
    captures: Mapping[str, Any]
    products: Mapping[int, tuple[Node, ...]] = MappingProxyType({})
    rounded: tuple[tuple[float, float], ...] = ()
    ranks: Mapping[str, int | None] = MappingProxyType({})

    def matched(self) -> list[Node]:
        """Returns the graph nodes matched so far by the lines of the pattern, including the inner nodes of products."""
        called = [node for number, node in self.nodes.items() if number not in self.products]
        return [*called, *(node for nodes in self.products.values() for node in nodes)]


class Goal(NamedTuple):
    """A pending comparison of an argument with a term.

    Attributes:
        term: the term that the argument must match.
        actual: the argument in the graph.
        label: how messages refer to the argument.
        rank: the rank of the tensor that has the axis if the argument is an axis, else None.
        dtype: the dtype of the op's result.
    """

    term: Expected
    actual: Any
    label: str
    rank: int | None
    dtype: torch.dtype | None


class Search:
    """The search for one pattern at one anchor."""

    def __init__(self, index: Index, pattern: Pattern, anchor: Node, read: set[Node]) -> None:
        self.index = index
        self.pattern = pattern
        self.anchor = anchor
        self.read = read
        self.spent = 0
        self._rank = (0, False)
        self.nearest = self.near(0, anchor, lambda: (str(pattern.lines[-1].op), op_name(anchor.target)))

    def ways(self) -> Iterator[State]:
        """Yields the state of every complete match of the pattern at the anchor."""
        yield from self.line(len(self.pattern.lines) - 1, self.anchor, (), State({}, {}))

    def solve(self, goals: tuple[Goal, ...], state: State) -> Iterator[State]:
        """Yields every state in which all goals hold and every line of the pattern is matched."""
        self.spend()
        if not goals:
            yield from self.open_line(state)
            return
        (term, actual, label, rank, dtype), rest = goals[0], goals[1:]
        if isinstance(term, Name) and term.id in self.pattern.places:
            number, position = self.pattern.places[term.id]
            node = _source(actual, position) if self.pattern.lines[number].unpacks else actual
            if node is None:
                self.fail(
                    state,
                    lambda: (f"{label} to be a result of {self.pattern.lines[number].op}", text_of(actual)),
                    actual,
                )
                return
            yield from self.line(number, node, rest, state)
        elif isinstance(term, Name) and term.id not in self.pattern.literals:
            self.read.update(nodes_in(actual))
            if term.id == "_" or term.id not in state.captures:
                new = {} if term.id == "_" else {term.id: actual}
                ranks = {**state.ranks, **dict.fromkeys(new, rank)} if rank else state.ranks
                yield from self.solve(rest, state._replace(captures={**state.captures, **new}, ranks=ranks))
            elif same(state.captures[term.id], actual, rank if rank == state.ranks.get(term.id) else None):
                yield from self.solve(rest, state)
            else:
                one = state.captures[term.id]
                self.fail(state, lambda: (f"{label} to be {term.id}, {text_of(one)}", text_of(actual)), actual)
        elif isinstance(term, Items):
            if isinstance(actual, list | tuple) and len(actual) == len(term.items):
                inner = [Goal(item, value, label, rank, dtype) for item, value in zip(term.items, actual, strict=True)]
                yield from self.solve((*inner, *rest), state)
            else:
                count = len(term.items)
                self.fail(state, lambda: (f"{label} to be a list of {count}", text_of(actual)), actual)
        elif (literal := self.literal(term, actual, rank)) is not None:
            if isinstance(literal, Literal) and differs(literal, actual, dtype):
                state = state._replace(rounded=(*state.rounded, (actual, float(literal.value or 0))))
            yield from self.solve(rest, state)
        else:
            self.fail(state, lambda: (f"{label} to be {_shown(term)}", text_of(actual)), actual)

    def line(self, number: int, node: Any, goals: tuple[Goal, ...], state: State) -> Iterator[State]:
        """Yields every complete match in which the line with this number matches a node and all goals hold."""
        line = self.pattern.lines[number]
        self.read.update(nodes_in(node))
        if number in state.nodes:
            if state.nodes[number] is node:
                yield from self.solve(goals, state)
            else:
                other = state.nodes[number]
                self.fail(state, lambda: (f"{line.targets[0]} to be {other.name}", text_of(node)), node)
            return
        if line.op is PRODUCT and isinstance(node, Node):
            yield from self.product(number, node, goals, state)
            return
        if not is_call(node) or node.target is not line.op:
            self.fail(state, lambda: (str(line.op), _called(node)), node)
            return
        if any(node is other for other in state.matched()):
            self.fail(state, lambda: (f"another call of {line.op}", f"{text_of(node)}, already matched"), node)
            return
        state = state._replace(nodes={**state.nodes, number: node})
        actuals, dtype = self.index.arguments(node), _dtype(node)
        orders = self.pattern.orders[number]
        for slots in orders if same(actuals.get("alpha", 1), 1) else orders[:1]:
            new = [
                Goal(slot.term, actuals[slot.name], slot.label, _rank(node, actuals) if slot.is_axis else None, dtype)
                for slot in slots
            ]
            yield from self.solve((*new, *goals), state)

    def product(self, number: int, node: Node, goals: tuple[Goal, ...], state: State) -> Iterator[State]:
        """Yields every complete match in which a product line matches a decomposition of a node and all goals hold."""
        terms = dict(self.pattern.lines[number].terms)
        times = terms.pop("times")
        # Any value is the product of itself and 1. With pattern variables as factors, the line would match any value.
        may_be_none = all(isinstance(term, Name) and term.id in self.pattern.places for term in terms.values())
        is_anchor = number == len(self.pattern.lines) - 1
        taken = state.matched()
        for cut in cuts(node, len(terms), self.visit):
            if not cut.nodes and (is_anchor or not may_be_none):
                continue
            if any(inner is other for inner in cut.nodes for other in taken):
                continue
            here = state._replace(nodes={**state.nodes, number: node}, products={**state.products, number: cut.nodes})
            number_of = Goal(times, cut.number, "the number in the product", None, _dtype(node))
            tried = set()
            for factors in permutations(cut.factors):
                self.spend()
                if factors in tried:
                    continue
                tried.add(factors)
                # Factors that are ops are compared before pattern variables. The number is compared first if it is
                # a literal, and last if it is a variable.
                new = [
                    Goal(term, one, "a factor of the product", None, None)
                    for term, one in sorted(zip(terms.values(), factors, strict=True), key=self._is_capture)
                ]
                first, last = ((), (number_of,)) if isinstance(times, Name) else ((number_of,), ())
                yield from self.solve((*first, *new, *last, *goals), here)
        self.fail(state, lambda: (f"a product of {len(terms)} tensors", text_of(node)), node)

    def open_line(self, state: State) -> Iterator[State]:
        """Matches a remaining line that uses a value already found, by trying each user of this value.

        Yields every state in which all lines are matched.
        """
        numbers = [number for number in range(len(self.pattern.lines)) if number not in state.nodes]
        if not numbers:
            yield state
            return
        for number in reversed(numbers):
            line = self.pattern.lines[number]
            for term in line.terms.values():
                if (value := self.value(term, state)) is not None:
                    for user in self.index.users_calling(value, line.op):
                        yield from self.line(number, user, (), state)
                    self.fail(state, partial(_unread, value, line.op), value)
                    return

    def value(self, term: Expected, state: State) -> Node | None:
        """Returns the node that a term stands for, or None if the term is not a name already bound to a node."""
        if not isinstance(term, Name):
            return None
        if term.id in self.pattern.places:
            number, position = self.pattern.places[term.id]
            line, node = self.pattern.lines[number], state.nodes.get(number)
            return result_of(node, position) if line.unpacks and node is not None else node
        captured = state.captures.get(term.id)
        return captured if isinstance(captured, Node) else None

    def literal(self, term: Expected, actual: Any, rank: int | None) -> Expected | None:
        """Returns the literal or default that a term expects, or None if the argument in the graph is different.

        Args:
            term: a literal of the line, a name for a literal, or the default of an omitted argument.
            actual: the argument in the graph.
            rank: the rank of the tensor if the argument is an axis, else None.
        """
        if isinstance(term, Name):
            named = self.pattern.literals[term.id]
            return self.literal(named, actual, rank) if isinstance(named, Literal | Items) else None
        if isinstance(term, Default):
            return term if same(term.value, actual) else None
        return term if isinstance(term, Literal) and same_literal(term, actual, rank) else None

    def _is_capture(self, factor: tuple[Expected, Node]) -> bool:
        return isinstance(factor[0], Name) and factor[0].id not in self.pattern.places

    def visit(self, node: Node) -> None:
        """Records that a node was examined as part of a product, and counts one comparison."""
        self.read.add(node)
        self.spend()

    def spend(self) -> None:
        """Counts one comparison against the limit `BUDGET`.

        Raises:
            RuleError: the search has exceeded the limit.
        """
        self.spent += 1
        if self.spent > BUDGET:
            what = f"the pattern needs more than {BUDGET} comparisons at {self.anchor.name}"
            raise refuse(self.pattern.rule, "/match", what, "constrain more of the arguments, or split the rule")

    def fail(self, state: State, words: Words, at: Any) -> None:
        """Records a partial match as the nearest miss if it is longer than the previous one.

        Of two equally long partial matches, the one that failed at an op call is kept.
        """
        rank = (len(state.nodes), is_call(at))
        if rank > self._rank:
            self._rank = rank
            differs = at if isinstance(at, Node) else list(state.nodes.values())[-1]
            self.nearest = self.near(len(state.nodes), differs, words)

    def refusal(self, problem: Refused, *, fits: bool) -> NearMiss:
        """Returns the near miss for a subgraph that matches but must not be replaced."""
        near = self.near(len(self.pattern.lines), problem.at or self.anchor, problem.words, refused=True)
        return replace(near, fits=fits)

    def near(self, found: int, differs: Node, words: Words, *, refused: bool = False) -> NearMiss:
        """Creates a near miss at this anchor, in which `found` ops match and the node `differs` does not."""
        return NearMiss(self.pattern.rule, self.anchor, differs, found, len(self.pattern.lines), words, refused)


def _unread(value: Node, op: Any) -> tuple[str, str]:
    return f"a user of {value.name} that calls {op}", "none"


def _called(node: Any) -> str:
    return op_name(node.target) if isinstance(node, Node) and node.op == "call_function" else text_of(node)


def _rank(node: Node, actuals: Mapping[str, Any]) -> int | None:
    """Returns the rank of the tensor to whose dims the op's `dim` refers: of its first tensor, or of its result."""
    for value in [node] if op_name(node.target) in OF_RESULT else actuals.values():
        fake = value.meta.get("val") if isinstance(value, Node) else None
        if isinstance(fake, torch.Tensor):
            return fake.dim()
    return None


def _dtype(node: Node) -> torch.dtype | None:
    fake = node.meta.get("val")
    return fake.dtype if isinstance(fake, torch.Tensor) else None


def _source(actual: Any, position: int) -> Node | None:
    """Returns the node whose result at `position` the getitem node `actual` selects, or None for any other value."""
    if not is_getitem(actual) or actual.args[1] != position:
        return None
    source = actual.args[0]
    return source if isinstance(source, Node) else None


def result_of(node: Node, position: int) -> Node | None:
    """Returns the getitem node that selects the result of an op at `position`, or None if no such node exists."""
    return next((user for user in node.users if is_getitem(user) and user.args[1] == position), None)


def _shown(term: Expected) -> str:
    if isinstance(term, Default):
        return repr(term.value)
    return repr(term.value) if isinstance(term, Literal) and not term.is_dtype else str(getattr(term, "value", term))

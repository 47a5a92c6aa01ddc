"""Extracts the cheapest forms from an e-graph, as lines that may replace the region.

A form is a list of ops that computes the results of a region. A class is a set of nodes that compute the same value.
Choosing the cheapest form exactly is hard, because a value that two ops use is computed only once. So the cheapest
tree, in which every use of a value counts, is found for each size. A neighbor of this tree computes one of the values
with another op. Then the costs of the tree and its neighbors are compared as graphs, in which a shared value counts
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from fuseconv.matching.graph import is_call
from fuseconv.matching.regions import call_text
from fuseconv.searching.cost import Cost, bytes_of
from fuseconv.searching.saturation import Saturated

GAIN = 2.0
"""A form is worth timing if, at some size, its estimated time is at most this multiple of the estimated time of the
unchanged region. The estimate may be wrong by this factor."""

TRIED = 400
"""The maximum number of neighbors whose costs are compared."""


Flops = tuple[tuple[object, ...], ...]

_PRODUCTS = ("aten.linear.default", "aten.matmul.default")


@dataclass(frozen=True)
class Candidate:
    """One form of a region, with its estimated cost.

    Attributes:
        lines: the rule lines that compute the results of the region.
        times: the estimated time at each size, in microseconds.
        bytes: the size in bytes of the constants that the form reads.
        flops: one tuple for each op that performs counted floating-point operations, such as a matrix product: the kind
            of the op, then its number of operations at each size. Of forms with equal `flops`, only the cheapest is
            kept, because the estimate ranks their remaining differences well.
    """

    lines: tuple[str, ...]
    times: tuple[float, ...]
    bytes: int
    flops: Flops

    def __str__(self) -> str:
        return "; ".join(self.lines)


Picks = Mapping[Node, Node]
"""A choice of a form: maps the first node of each equivalence class to the node that computes the class's value."""


class Extraction:
    """Extracts the forms of one region and estimates their costs."""

    def __init__(self, saturated: Saturated, cost: Cost) -> None:
        self._saturated, self._cost = saturated, cost
        self._workspace, self._region = saturated.workspace, saturated.region
        self._leaves = dict(self._region.names)
        self._classes = {self._first(node): alike for node, alike in saturated.classes.items()}
        self._times: dict[Node, tuple[float, ...]] = {}

    def _first(self, node: Node) -> Node:
        return self._saturated.classes[node][0]

    @cached_property
    def given(self) -> Candidate:
        """The form in which the model computes the region, with its estimated cost."""
        own = {self._first(node): node for node in self._region.nodes}
        found = self._candidate({**self._cheapest(0), **own})
        assert found is not None
        return found

    def candidates(self, count: int, gain: float = GAIN) -> list[Candidate]:
        """Returns the forms that are worth timing: the best over all sizes, the best at each size, then the next best.

        Forms are ranked by the sum over all sizes of the estimated time, relative to that of the unchanged region.

        Args:
            count: the maximum number of forms.
            gain: the maximum estimated time of a form, relative to the unchanged region. A form is returned only if
                it is within this limit at some size.
        """

        def rank(form: Candidate) -> tuple[object, ...]:
            return round(sum(self._ratios(form)), 3), _calls(form), form.bytes, form.lines

        found: dict[Flops, Candidate] = {}
        for picks in self._picks():
            one = self._candidate(picks)
            if one is not None:
                found[one.flops] = min(found.get(one.flops, one), one, key=rank)
        ratios = {form: self._ratios(form) for form in found.values() if not self._is_given(form)}
        useful = sorted((form for form, one in ratios.items() if min(one) <= gain), key=rank)
        best = [min(useful, key=lambda form: ratios[form][at]) for at in range(len(self.given.times)) if useful]
        return list(dict.fromkeys([*useful[:1], *best, *useful]))[:count]

    def _is_given(self, form: Candidate) -> bool:
        """Returns whether a form differs from the unchanged region only in the order of operands and ops."""
        pairs = zip(form.times, self.given.times, strict=True)
        return form.flops == self.given.flops and all(math.isclose(one, own) for one, own in pairs)

    def _ratios(self, form: Candidate) -> list[float]:
        return [one / max(own, 1e-9) for one, own in zip(form.times, self.given.times, strict=True)]

    def _picks(self) -> Iterator[Picks]:
        """Yields choices of one node per class: the cheapest tree over all sizes, and at each size, and neighbors."""
        sizes = range(len(self.given.times))
        weights = [
            [1 / max(own, 1e-9) for own in self.given.times],
            *([float(at == one) for at in sizes] for one in sizes),
        ]
        tried = 0
        for weight in weights:
            best = self._cheapest(weight)
            yield best
            for first in self._used(best):
                for other in self._classes[first]:
                    if other is not best.get(first) and is_call(other) and tried < TRIED:
                        tried += 1
                        yield {**best, first: other}

    def _cheapest(self, weight: Sequence[float] | int) -> dict[Node, Node]:
        """Returns, for each class, the node that computes the value at the lowest cost, counting every use of a value.

        Args:
            weight: the weight of the time at each size in the cost. An int stands for weights of 1.
        """
        weights = weight if isinstance(weight, Sequence) else [1.0] * len(self._cost.rungs)
        least, picks = dict[Node, float](), dict[Node, Node]()
        changed = True
        while changed:
            changed = False
            for first, alike in self._classes.items():
                for node in alike:
                    own = self._tree(node, weights, least)
                    if own < least.get(first, math.inf):
                        least[first], picks[first], changed = own, node, True
        return picks

    def _tree(self, node: Node, weights: Sequence[float], least: Mapping[Node, float]) -> float:
        if self._is_leaf(node):
            return 0.0
        own = sum(weight * one for weight, one in zip(weights, self._time(node), strict=True))
        return own + 1e-6 + sum(least.get(self._first(operand), math.inf) for operand in node.all_input_nodes)

    def _is_leaf(self, node: Node) -> bool:
        return self._workspace.is_constant(node) or (node in self._leaves and node not in self._region.nodes)

    def _time(self, node: Node) -> tuple[float, ...]:
        if node not in self._times:
            self._times[node] = self._cost.times(node)
        return self._times[node]

    def _used(self, picks: Picks) -> list[Node]:
        """Returns the first node of each class that the results of the region depend on, given a choice of nodes."""
        used, queue = dict[Node, None](), [self._first(node) for node in self._region.results]
        while queue:
            first = queue.pop()
            if first not in used:
                used[first] = None
                node = picks[first]
                queue += [] if self._is_leaf(node) else [self._first(operand) for operand in node.all_input_nodes]
        return list(used)

    def _ordered(self, picks: Picks) -> list[Node] | None:
        """Returns the chosen nodes in execution order, or None if a node depends on itself."""
        done, order, open_ = set[Node](), list[Node](), set[Node]()
        stack = [(self._first(node), False) for node in reversed(self._region.results)]
        while stack:
            first, ready = stack.pop()
            if ready:
                open_.discard(first)
                done.add(first)
                order.append(picks[first])
            elif first in open_:
                return None
            elif first not in done:
                open_.add(first)
                stack.append((first, True))
                node = picks[first]
                stack += [] if self._is_leaf(node) else [(self._first(one), False) for one in node.all_input_nodes]
        return order

    def _candidate(self, picks: Picks) -> Candidate | None:
        """Returns the form that a choice of nodes yields, or None if it is cyclic or has no text as rule lines."""
        order = self._ordered(picks)
        if order is None:
            return None
        calls = [node for node in order if not self._is_leaf(node)]
        lines = self._lines(order)
        if lines is None:
            return None
        times = [self._time(node) for node in calls]
        read = {picks[self._first(operand)] for node in calls for operand in node.all_input_nodes}
        constants = [node for node in read if self._workspace.is_constant(node)]
        flops = [(_kind(node), *(one.flops for one in self._cost.work(node))) for node in calls]
        return Candidate(
            lines,
            tuple(map(sum, zip(*times, strict=True))) or (0.0,) * len(self._cost.rungs),
            sum(map(bytes_of, constants)),
            tuple(sorted(one for one in flops if any(one[1:]))),
        )

    def _lines(self, order: Sequence[Node]) -> tuple[str, ...] | None:
        """Returns the rule lines of a form, or None if an op or a constant cannot be written as a line.

        The lines compute constants at conversion, call ops, and bind the names of the results.
        """
        names, lines = dict[Node, str](), list[str]()
        results = {self._first(node): self._region.names[node] for node in reversed(self._region.results)}
        for node in order:
            first = self._first(node)
            if self._is_leaf(node):
                if not self._constant(node, names, lines):
                    return None
                names[first] = names[node]
            else:
                operands = {operand: names[self._first(operand)] for operand in node.all_input_nodes}
                text = call_text(node, operands)
                if text is None:
                    return None
                names[first] = results.get(first, f"e{len(lines)}")
                lines.append(f"{names[first]} = {text}")
        for node in self._region.results:
            own, first = self._region.names[node], self._first(node)
            if names[first] != own:
                lines.append(f"{own} = {names[first]}")
        return tuple(lines)

    def _constant(self, node: Node, names: dict[Node, str], lines: list[str]) -> bool:
        """Adds a leaf's name to `names`, and to `lines` the lines that compute it, unless it is an operand.

        Returns whether the leaf can be written as lines.
        """
        if node in names:
            return True
        if node in self._leaves:
            names[node] = self._leaves[node]
            return True
        deferred = self._workspace.deferred(node)
        if deferred is None:
            return False
        operands = [one for one in (*deferred.args, *deferred.kwargs.values()) if isinstance(one, Node)]
        if not all(self._constant(operand, names, lines) for operand in operands):
            return False
        names[node] = f"e{len(lines)}"
        call = self._workspace.graph.create_node("call_function", deferred.op, deferred.args, dict(deferred.kwargs))
        text = call_text(call, names)
        self._workspace.graph.erase_node(call)
        lines.append(f"{names[node]}: constant = {text}")
        return text is not None


def _calls(form: Candidate) -> int:
    """Returns the number of ops that a form calls at run time."""
    return sum(": constant" not in line for line in form.lines)


def _kind(node: Node) -> str:
    """Returns the kind of an op: `product` for linears and matrix products, which use the same kernels, or its name."""
    return "product" if str(node.target) in _PRODUCTS else str(node.target)

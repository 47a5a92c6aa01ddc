"""The ledger: one graph that computes the values of a program and of all steps of a plan. No node is removed.

A step is one rewrite of the graph by a rule. The ledger shows each step in isolation, as an excerpt: the matched ops
and their replacement, on the values of the model. A single run
of the graph computes the values for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node, map_arg

from fuseconv.graph.nodes import facts_of, written
from fuseconv.matching.bindings import from_binding
from fuseconv.matching.graph import Workspace, is_call, nodes_in
from fuseconv.matching.match import insertion_point
from fuseconv.matching.rewrite import apply
from fuseconv.matching.steps import Step
from fuseconv.program.captured import Program


@dataclass(frozen=True)
class Excerpt:
    """One step in isolation: a graph of the matched ops and a graph of their replacement.

    Values that do not depend on an input, such as masks and folded weights, are computed in both graphs and are not
    operands. The conditions of the rule were proved for these values, so tests must not replace them with other values.

    Attributes:
        step: the step that the excerpt isolates.
        before: the graph of the matched ops.
        after: the graph of the replacement. It has the same placeholders as `before`.
        operands: for each placeholder, the node of the ledger that gives its value.
        first: the first matched node, in execution order.
        point: the node before which the replacement is inserted, or a later node. All operands are computed before it.
        writes: whether a matched op writes in place.
    """

    step: Step
    before: Graph
    after: Graph
    operands: tuple[Node, ...]
    first: Node
    point: Node
    writes: bool


class Ledger:
    """The graph of a program together with the nodes that steps add.

    Attributes:
        graph: the graph. It also contains the nodes that steps replaced.
        workspace: the program, rewritten by the steps executed so far.
        own: the nodes of the original program.
        placeholders: maps each placeholder of `graph` to its node in the workspace.
        varying: the nodes whose values may differ between calls, except through sizes alone: values that depend on an
            input, on random numbers, or on memory that an op writes in place.
    """

    def __init__(self, program: Program) -> None:
        self.workspace = Workspace(program.exported, trainable=program.trainable, results=program.results)
        self.graph = Graph()
        self.varying: set[Node] = set()
        self._copies: dict[Node, Node] = {}
        self.graph.graph_copy(self.workspace.graph, self._copies)
        self.own = frozenset(self.graph.nodes)
        # The first op that does not compute a constant of a step. Such constants are inserted before it.
        self._start = next((node for node in self.graph.nodes if node.op != "placeholder"), self.graph._root)
        self.placeholders = {copy: node for node, copy in self._copies.items() if node.op == "placeholder"}
        for node, copy in self._copies.items():
            self._classify(copy)
            # In-place writes may change a tensor later, as when the slices of new_empty are filled one by one.
            writers = self.workspace.aliases.writers_after(node)
            if not all(is_call(writer) and _writes_alone(writer) for writer in writers):
                self.varying.add(copy)

    def execute(self, step: Step) -> Excerpt:
        """Executes the next step and returns its excerpt.

        Raises:
            Refused: the step does not fit the graph.
        """
        workspace = self.workspace
        matched = sorted(workspace.node(name) for name in step.nodes)
        results = [workspace.node(node) for node in step.results.values()]
        captures = [from_binding(binding, workspace.node) for binding in step.bindings.values()]
        operands = frozenset(node for value in captures for node in nodes_in(value))
        point = self._copies[insertion_point(frozenset(matched), operands, frozenset(results))]
        # An earlier step may have replaced an operand of a matched node. So the matched nodes are copied with their
        # current operands. A matched node behind the point may read a value that is computed behind it, such as a size.
        old: dict[Node, Node] = {}

        def current(node: Node) -> Node:
            return old.get(node) or self._copies[node]

        for node in matched:
            place = max([point, *(current(used).next for used in node.all_input_nodes)])
            old[node] = self._add(node.target, node, current, place)
        writes = any(any(written(node)) for node in matched)
        apply(workspace, step, clean=False)  # values without users are still needed here
        made: set[Node] = set()
        new = [self._adopt(workspace.current(node), point, made) for node in results]
        inner, outputs = (set(old.values()), made), ([old[node] for node in results], new)
        needed = [self._needed(ends, within) for ends, within in zip(outputs, inner, strict=True)]
        leaves = [
            {node for node in nodes if self._is_leaf(node, within)} for nodes, within in zip(needed, inner, strict=True)
        ]
        read = sorted(leaves[0] | leaves[1])
        before, after = (
            _graph(read, sorted(nodes - set(read)), ends) for nodes, ends in zip(needed, outputs, strict=True)
        )
        point = max(
            [point, *(node.next for node in read)]
        )  # an operand of a duplicate may have other copies, created later
        workspace.clean()
        return Excerpt(step, before, after, tuple(read), min(self._copies[node] for node in matched), point, writes)

    def _needed(self, ends: Sequence[Node], inner: set[Node]) -> set[Node]:
        """Returns all nodes required to compute `ends`: `ends` themselves and, transitively, their operands.

        The search stops at placeholders, and at varying nodes that are not in `inner`.
        """
        needed: set[Node] = set()
        queue = list(ends)
        while queue:
            node = queue.pop()
            if node not in needed:
                needed.add(node)
                queue.extend(() if self._is_leaf(node, inner) else node.all_input_nodes)
        return needed

    def _is_leaf(self, node: Node, inner: set[Node]) -> bool:
        return node.op == "placeholder" or (node in self.varying and node not in inner)

    def _adopt(self, node: Node, point: Node, made: set[Node]) -> Node:
        """Returns the ledger's copy of a workspace node. If the copy is missing, adds it before `point`.

        Missing operands of the node are added in the same way. A constant that is computed at conversion is added as
        the op that computes the constant. Each new copy is also added to the set `made`.
        """
        if node not in self._copies:
            deferred = self.workspace.deferred(node)
            call: Any = deferred or node
            target = node.target if deferred is None else deferred.op
            # Constants are computed first, because a step that is earlier in the graph may use them too.
            place = None if deferred else point
            self._copies[node] = self._add(target, call, lambda used: self._adopt(used, point, made), place)
            made.add(self._copies[node])
        return self._copies[node]

    def _add(self, target: Any, call: Any, operand: Callable[[Node], Node], point: Node | None) -> Node:
        """Adds a node before `point`. If `point` is None, the node is a constant and is added before all other ops."""
        args, kwargs = map_arg((tuple(call.args), dict(call.kwargs)), operand)
        with self.graph.inserting_before(point or self._start):
            copy = self.graph.create_node("call_function", target, args, kwargs)
        if point is self._start:
            self._start = copy
        copy.meta["val"] = getattr(call, "meta", {}).get("val")
        self._classify(copy)
        return copy

    def _classify(self, copy: Node) -> None:
        if copy.op == "placeholder":
            varies = not self.workspace.is_constant(self.placeholders[copy])
        else:
            varies = copy.op == "get_attr" or any(used in self.varying for used in copy.all_input_nodes)
            if is_call(copy):
                varies = varies and not facts_of(copy).metadata_only
                varies |= facts_of(copy).draws or (any(written(copy)) and not _writes_alone(copy))
        if varies:
            self.varying.add(copy)


def _writes_alone(node: Node) -> bool:
    """Returns whether an op writes in place only to values without other users, so that no other op sees the write."""
    operands = list(written(node))
    return bool(operands) and all(is_call(one) and len(one.users) == 1 and not facts_of(one).shares for one in operands)


def _graph(read: Iterable[Node], nodes: Iterable[Node], ends: Sequence[Node]) -> Graph:
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in read}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in ends))
    return graph

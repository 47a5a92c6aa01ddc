"""Draws the fused graph of a bundle that does not contain one: the captured graph, changed by the steps of the plan.

Nothing runs, and torch is not needed. So the graph lacks what only torch can tell: the types of values that a
replacement computes on the way to its results, and the names of the parameters of its ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseconv.matching.steps import Step
from fuseconv.report.archive import Named
from fuseconv.report.graph import Graph, Made, Node
from fuseconv.rulebook.rule_text import Call, Items, Line, Name, Term, parse_line, written_term

UNKNOWN = "?"
"""The type of a value whose type is not known."""


def draw(captured: Named, steps: Sequence[Step]) -> Graph:
    """Returns the graph after the steps of a plan, without ops that only served replaced ops.

    Args:
        captured: the graph of the program to which the plan applies.
        steps: the steps that are executed, in order.

    Raises:
        ValueError: the steps do not fit the graph, so they are not from the plan of this program.
    """
    drawing = _Drawing(captured)
    try:
        for step in steps:
            drawing.apply(step)
        return drawing.graph()
    except LookupError as error:
        raise ValueError(f"a step refers to {error}, which does not exist") from error


@dataclass(frozen=True)
class _Bound:
    """What a name of a step stands for: its text, and the names of the values in it."""

    text: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Op:
    """A node of the drawing.

    Attributes:
        node: the node. Its `inputs` are outdated until the graph is finished.
        gives: the names of the values that it computes.
        uses: the names of the values that it uses. Steps may have replaced them.
        is_kept: whether the node stays even if nothing uses its values.
    """

    node: Node
    gives: tuple[str, ...]
    uses: tuple[str, ...]
    is_kept: bool


class _Drawing:
    """A graph that is being changed.

    A plan refers to a value by its name in the captured graph, even after a step has replaced the value, and to a new
    value that is not a result by `NODE/RULE/NAME`.
    """

    def __init__(self, captured: Named) -> None:
        self._graph = captured.graph
        self._weights = captured.weights
        self._types = dict(captured.types)
        self._replaced: dict[str, str] = {}
        named = zip(captured.graph.nodes, captured.gives, captured.uses, strict=True)
        self._ops = [_Op(node, gives, uses, _has_effect(node)) for node, gives, uses in named]
        self._taken = {name for op in self._ops for name in (op.node.name, *op.gives)}

    def apply(self, step: Step) -> None:
        """Replaces the matched ops of a step by the ops in its lines."""
        matched = {self._current(name) for name in step.nodes}
        places = [at for at, op in enumerate(self._ops) if _matches(op, matched)]
        origins = {name: self._ops[at].node for at in places for name in self._ops[at].gives}
        results = {name: self._current(node) for name, node in step.results.items()}
        bound = {name: self._bound(binding) for name, binding in step.bindings.items()}
        made: list[_Op] = []
        for line in map(parse_line, step.replace):
            if isinstance(line.value, Call) and not line.constant:
                made.append(self._called(step, line, line.value, results, bound, origins))
            elif isinstance(line.value, Call):
                bound[line.targets[0]] = _Bound(f"{line.targets[0]}, computed by the conversion")
            else:
                bound[line.targets[0]] = _resolved(line.value, bound)
        for name, node in results.items():
            (value,) = bound[name].values or (node,)  # a constant is no value of the drawing
            if (new := self._current(value)) != node:
                self._replaced[node] = new
        end = max(places, default=-1) + 1
        self._ops[:end] = [op for at, op in enumerate(self._ops[:end]) if at not in places] + made

    def graph(self) -> Graph:
        """Returns the graph in execution order, without ops whose values are no longer used."""
        computes = {name: at for at, op in enumerate(self._ops) for name in op.gives}
        used = [dict.fromkeys(map(self._current, op.uses)) for op in self._ops]
        inputs = [tuple(computes[name] for name in names if name in computes) for names in used]
        order = list(_ordered([at for at, op in enumerate(self._ops) if op.is_kept], inputs))
        new = {at: position for position, at in enumerate(order)}
        nodes = [replace(self._ops[at].node, inputs=tuple(new[one] for one in inputs[at])) for at in order]
        return replace(self._graph, nodes=tuple(nodes))

    def _called(
        self,
        step: Step,
        line: Line,
        call: Call,
        results: Mapping[str, str],
        bound: dict[str, _Bound],
        origins: Mapping[str, Node],
    ) -> _Op:
        """Returns the op of a line, and binds the targets of the line to its values."""
        terms = [*(("", term) for term in call.args), *call.kwargs]
        given = [(keyword or _label(term), _resolved(term, bound)) for keyword, term in terms]
        named = [results[target] for target in line.targets if target in results]
        origin = origins[named[0] if named else list(origins)[-1]]
        name = self._free("_".join([call.op.split(".")[1], origin.name, *([] if named else line.targets[:1])]))
        gives = []
        for target in line.targets:
            value = self._free(f"{name}_{target}") if line.unpacks else name
            self._types[value] = self._types.get(results.get(target, ""), UNKNOWN)
            bound[target] = _Bound(value, (value,))
            gives.append(value)
            for result in step.results.values():
                self._refer(f"{result}/{step.rule}/{target}", value)
        types = tuple(self._types[value] for target, value in zip(line.targets, gives, strict=True) if target != "_")
        arguments = tuple(f"{label} = {one.text}" if label else one.text for label, one in given)
        made = (*origin.made, Made(step.rule, step.nodes))
        node = Node(name, "op", call.op, origin.module, (), arguments, types, origin.line, made)
        return _Op(node, tuple(gives), tuple(value for _, one in given for value in one.values), is_kept=False)

    def _bound(self, binding: Mapping[str, Any]) -> _Bound:
        """Returns what the binding of a pattern variable stands for."""
        ((kind, value),) = binding.items()
        if kind == "items":
            return _joined([self._bound(one) for one in value])
        if kind != "node":
            return _Bound(str(value))
        return _Bound(self._weights[value]) if value in self._weights else _Bound(value, (self._current(value),))

    def _current(self, name: str) -> str:
        """Returns the name of the value that has replaced a value, or the name itself if none has."""
        while name in self._replaced:
            name = self._replaced[name]
        return name

    def _refer(self, reference: str, value: str) -> None:
        """Makes a value known by the name that the plan gives to it. A name that is taken gets a suffix."""
        if reference in self._replaced:
            count = sum(known.partition("~")[0] == reference for known in self._replaced)
            reference = f"{reference}~{count + 1}"
        if reference not in self._taken:
            self._replaced[reference] = value

    def _free(self, name: str) -> str:
        """Returns a name that no value has, and marks it as taken."""
        count = 0
        while (free := f"{name}_{count}" if count else name) in self._taken or free in self._replaced:
            count += 1
        self._taken.add(free)
        return free


def _has_effect(node: Node) -> bool:
    """Returns whether a node is needed even if nothing uses its values: an input, an output, or an op with an effect.

    An op has an effect if it returns no tensor, like an assertion, or if it writes into an operand.
    """
    return node.kind != "op" or not any(node.types) or node.op.split(".")[-2:][0].endswith("_")


def _matches(op: _Op, matched: set[str]) -> bool:
    """Returns whether an op is one of the matched nodes. An op with several results has a node for each of them."""
    return op.node.kind == "op" and (op.node.name in matched or (bool(op.gives) and matched.issuperset(op.gives)))


def _resolved(term: Term, bound: Mapping[str, _Bound]) -> _Bound:
    """Returns what a term of a replacement stands for."""
    if isinstance(term, Name):
        return bound[term.id]
    if isinstance(term, Items):
        return _joined([_resolved(one, bound) for one in term.items])
    return _Bound(written_term(term))


def _joined(items: Sequence[_Bound]) -> _Bound:
    return _Bound(f"[{', '.join(one.text for one in items)}]", tuple(value for one in items for value in one.values))


def _label(term: Term) -> str:
    """Returns the name that stands before an argument: that of the rule, or an empty string for a literal."""
    return term.id if isinstance(term, Name) else ""


def _ordered(kept: Sequence[int], inputs: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yields the nodes that are kept and the nodes that these use, each after the nodes that it uses.

    Raises:
        ValueError: a node uses its own result.
    """
    needed, stack = set(kept), list(kept)
    while stack:
        new = set(inputs[stack.pop()]) - needed
        needed |= new
        stack += new
    done: set[int] = set()
    for first in sorted(needed):
        path = [] if first in done else [first]
        while path:
            missing = next((one for one in inputs[path[-1]] if one not in done), None)
            if missing is None:
                done.add(path[-1])
                yield path.pop()
            elif missing in path:
                raise ValueError("an op uses its own result")
            else:
                path.append(missing)

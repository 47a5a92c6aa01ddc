"""Finds all forms of a region that the rules of the stage `search` produce, by equality saturation in an e-graph.

An e-graph is a compact set of expressions that also stores which of them are equal. The library egglog finds where a
pattern matches, given the equalities found so far, and merges equal expressions. As in every other stage, a rule is
applied only if its conditions are proved and its replacement gives the same types on fake tensors for all sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES
from fuseconv.graph.aten import facts
from fuseconv.matching.graph import Workspace, arguments, is_call, is_repeatable, nodes_in
from fuseconv.matching.match import check_where
from fuseconv.matching.pattern import Default, OpLine, Pattern, compile_rule
from fuseconv.matching.regions import Region
from fuseconv.matching.replacement import Instruction, Made, check_same, instantiate, resolve
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import Items, Literal, Name
from fuseconv.searching.egraph import EGraph, word

NODES = 1500
"""The maximum number of ops in all forms of a region together."""

SECONDS = 20.0
"""The maximum time for one region in seconds."""

ROUNDS = 16
"""The maximum number of rounds. In each round, every rule is applied wherever it matches."""


@dataclass(frozen=True)
class Saturated:
    """The forms of a region.

    Attributes:
        workspace: a graph that contains all ops of all forms.
        region: the region whose forms were searched.
        classes: maps each op or operand to its equivalence class: all nodes that compute the same value, including
            itself. The nodes of a class map to the same tuple, whose first node identifies the class.
        limit: the limit at which the search stopped, as text, such as `16 rounds`. Empty if every form was found.
    """

    workspace: Workspace
    region: Region
    classes: Mapping[Node, tuple[Node, ...]]
    limit: str


def saturate(
    workspace: Workspace,
    region: Region,
    rules: Sequence[Rule],
    *,
    nodes: int = NODES,
    seconds: float = SECONDS,
) -> Saturated:
    """Adds the ops of all forms of a region to the graph and returns the forms.

    Args:
        workspace: the graph to which the ops of all forms are added. The added ops have no users outside the forms.
        region: the region of the graph to search.
        rules: the rules of the stage `search` to apply.
        nodes: the maximum number of ops in all forms together.
        seconds: the maximum time of the search, in seconds.
    """
    growth = _Growth(workspace, rules)
    for node in region.operands:
        growth.leaf(node)
    for node in region.nodes:
        growth.number(node)
    limit, end = f"{ROUNDS} rounds", time.monotonic() + seconds
    for _ in range(ROUNDS):
        before = growth.state()
        for step in growth.round():
            if len(growth.ops) > nodes:
                limit = f"{nodes} ops"
            elif time.monotonic() > end:
                limit = f"{seconds:g} seconds"
            else:
                step()
                continue
            return Saturated(workspace, region, growth.classes(), limit)
        if growth.state() == before:
            limit = ""
            break
    return Saturated(workspace, region, growth.classes(), limit)


class _Growth:
    """The growing e-graph, and the value of each term: a node, a literal, or a list. Each term has a number."""

    def __init__(self, workspace: Workspace, rules: Sequence[Rule]) -> None:
        self.workspace, self.ops = workspace, dict[Any, Node]()
        self._graph, self._values, self._numbers = EGraph(), list[Any](), dict[Any, int]()
        self._least: list[int] = []
        self._end = workspace.graph.output_node()
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._equal: set[tuple[int, int]] = set()
        self._patterns: dict[str, tuple[Pattern, tuple[str, ...]]] = {}
        for rule in rules:
            for pattern in compile_rule(rule):
                self._add(f"match{len(self._patterns)}", pattern)

    def state(self) -> tuple[int, int]:
        """Returns the number of ops and the number of equalities. Both stay the same if a round finds nothing new."""
        return len(self.ops), len(self._equal)

    def number(self, value: Any) -> int:
        """Returns the number of the term for a node, literal or list. Adds the term if it is new."""
        key = value if isinstance(value, Node) else _key(value)
        if isinstance(value, list | tuple):
            operands = [self.number(item) for item in value]
            return self._call("list", operands, value, ("list", *operands))
        if key not in self._numbers:
            if isinstance(value, Node) and is_call(value) and not self.workspace.is_constant(value):
                assert isinstance(value.target, torch._ops.OpOverload)
                operands = [self.number(given) for given in arguments(value).values()]
                self._numbers[key] = self._op(value.target, operands, value)
            else:
                self.leaf(value)
        return self._numbers[key]

    def leaf(self, value: Any) -> None:
        """Adds the term for a value as a leaf: a term without operands."""
        self._numbers[value if isinstance(value, Node) else _key(value)] = number = self._new(value)
        self._graph.leaf(number)

    def _new(self, value: Any) -> int:
        self._values.append(value)
        self._least.append(len(self._values) - 1)
        return len(self._values) - 1

    def _call(self, name: str, operands: Sequence[int], value: Any, key: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = self._new(value)
            self._graph.call(self._numbers[key], self._graph.declare(name, len(operands)), operands)
        return self._numbers[key]

    def _op(self, op: torch._ops.OpOverload, operands: Sequence[int], node: Node) -> int:
        key = (op, *operands)
        self.ops.setdefault(key, node)
        self._head(op)
        return self._call(str(op), operands, node, key)

    def _head(self, op: torch._ops.OpOverload) -> str:
        """Declares an op and returns its name in egglog. If the op is commutative, a call may swap its operands.

        If the op has an argument `alpha`, only calls with alpha = 1 may swap their operands.
        """
        rest = op._schema.arguments[2:]
        words = [word(self.number(1)) if one.name == "alpha" else f"x{at}" for at, one in enumerate(rest)]
        return self._graph.declare(str(op), len(op._schema.arguments), words if facts(op).commutative else None)

    def _add(self, name: str, pattern: Pattern) -> None:
        """Adds the pattern of a rule to the e-graph, so that each round searches for it."""
        words = [fact for at, line in enumerate(pattern.lines) for fact in self._facts(pattern, at, line)]
        names = sorted({*pattern.places, *_variables(pattern)})
        self._patterns[name] = pattern, tuple(names)
        self._graph.pattern(name, words, [f"v_{one}" for one in names])

    def _facts(self, pattern: Pattern, at: int, line: OpLine) -> Iterator[str]:
        assert isinstance(line.op, torch._ops.OpOverload)
        arguments_ = line.op._schema.arguments
        terms = [line.terms.get(argument.name, Name("_")) for argument in arguments_]
        operands = [self._word(pattern, term, f"{at}_{place}") for place, term in enumerate(terms)]
        result = f"v_{line.targets[0]}" if line.targets[0] != "_" else f"r_{at}"
        yield f"(= {result} ({' '.join([self._head(line.op), *operands])}))"

    def _word(self, pattern: Pattern, term: Any, place: str) -> str:
        """Writes an argument of a pattern line in egglog's language."""
        match term:
            case Name(id="_"):
                return f"any_{place}"
            case Name(id=name) if name in pattern.literals:
                return self._word(pattern, pattern.literals[name], place)
            case Name(id=name):
                return f"v_{name}"
            case Items(items=items):
                head = self._graph.declare("list", len(items))
                words = [self._word(pattern, item, f"{place}_{at}") for at, item in enumerate(items)]
                return f"({' '.join([head, *words])})"
            case Literal(value=value, is_dtype=is_dtype):
                found = getattr(torch, DTYPES[str(value)].removeprefix("torch.")) if is_dtype else value
                return word(self.number(found))
            case Default(value=value):
                return word(self.number(value))
        raise AssertionError(term)

    def round(self) -> Iterator[Any]:
        """Matches every pattern once. Yields, for each new match, a function that applies the rule there."""
        self._least, found = self._graph.run(list(self._patterns))
        best = self._best()
        for name, rows in found.items():
            pattern, names = self._patterns[name]
            for row in rows:
                if (name, row) not in self._seen:
                    self._seen.add((name, row))
                    values = {one: self._values[best[number]] for one, number in zip(names, row, strict=True)}
                    yield lambda pattern=pattern, values=values: self._apply(pattern, values)

    def _best(self) -> dict[int, int]:
        """Maps the lowest term of each class to the term that represents the class: a constant term if there is one."""
        best: dict[int, int] = {}
        for number, least in enumerate(self._least):
            best.setdefault(least, number)
            if self.workspace.is_constant(self._values[number]) and not self.workspace.is_constant(
                self._values[best[least]]
            ):
                best[least] = number
        return best

    def _apply(self, pattern: Pattern, values: dict[str, Any]) -> None:
        """Applies a rule to a match: adds the ops of the replacement, and records that its results equal the match's.

        Does nothing if a condition is not proved or the replacement has other types for some sizes.
        """
        rule = pattern.rule
        captures = {name: value for name, value in values.items() if name not in pattern.places}
        try:
            for name, term in pattern.literals.items():
                captures[name] = resolve(term, captures, self.workspace)
            check_where(rule, {**values, **captures}, self.workspace)
            replacement = instantiate(rule.replacement, captures, self.workspace)
            for name in rule.results:
                check_same(replacement.fakes[name], values[name], "any")
        except Refused:
            return
        made: dict[str, Any] = {}
        for instruction in replacement.instructions:
            made[instruction.targets[0]] = self._made(instruction, made)
        for name in rule.results:
            same = replacement.same.get(name)
            new = same if isinstance(same, Node) else made[same.name if isinstance(same, Made) else name]
            one, other = self.number(values[name]), self.number(new)
            if (one, other) not in self._equal and self._least[one] != self._least[other]:
                self._equal.add((one, other))
                self._graph.equate(one, other)

    def _made(self, instruction: Instruction, made: Mapping[str, Node]) -> Node:
        """Returns the node for an op of a replacement. Reuses an existing node with the same operands."""
        args, kwargs = _with((list(instruction.args), dict(instruction.kwargs)), made)
        schema = instruction.op._schema.arguments
        given = {**dict(zip([one.name for one in schema], args, strict=False)), **kwargs}
        operands = [self.number(given.get(one.name, one.default_value)) for one in schema]
        key = (instruction.op, *operands)
        if (node := self.ops.get(key)) is None:
            node = self.ops[key] = self._node(instruction, tuple(args), kwargs)
            self._numbers[node] = self._op(instruction.op, operands, node)
        return node

    def _node(self, instruction: Instruction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        read = list(nodes_in([*args, *kwargs.values()]))
        op, fake = instruction.op, instruction.fake
        if all(map(self.workspace.is_constant, read)) and is_repeatable(op, fake):
            return self.workspace.compute(op, args, kwargs, f"form_{len(self.ops)}", fake)
        with self.workspace.graph.inserting_before(self._end):
            node = self.workspace.graph.call_function(op, args, kwargs)
        node.meta["val"] = fake
        return node

    def classes(self) -> dict[Node, tuple[Node, ...]]:
        """Maps each node to all nodes that compute the same value."""
        self._least, _ = self._graph.run([])
        members: dict[int, list[Node]] = {}
        for least, value in zip(self._least, self._values, strict=True):
            if isinstance(value, Node):
                members.setdefault(least, []).append(value)
        return {node: tuple(alike) for alike in members.values() for node in alike}


def _key(value: Any) -> Any:
    """Returns a key by which equal literals are recognized. 2 and 2.0 have one key; 1 and True have different keys."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", float(value)
    return type(value).__name__, str(value)


def _variables(pattern: Pattern) -> Iterator[str]:
    def names(term: Any) -> Iterator[str]:
        match term:
            case Name(id=name) if name != "_" and name not in pattern.literals:
                yield name
            case Items(items=items):
                for item in items:
                    yield from names(item)

    for line in pattern.lines:
        for term in line.terms.values():
            yield from names(term)


def _with(arguments_: Any, made: Mapping[str, Node]) -> Any:
    if isinstance(arguments_, Made):
        return made[arguments_.name]
    if isinstance(arguments_, dict):
        return {name: _with(value, made) for name, value in arguments_.items()}
    if isinstance(arguments_, list | tuple):
        return type(arguments_)(_with(value, made) for value in arguments_)
    return arguments_

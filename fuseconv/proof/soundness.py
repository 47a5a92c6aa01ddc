"""A rule proved on numbers: wherever it applies, what it puts in place gives what was there.

The programs are variants of the rule's examples, and the matcher itself decides where the rule applies, so that its
conditions are tried as they are used. Both forms are run, and judged by the matched one in float64, at the tolerances
of tolerance.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from fuseconv.matching.graph import Workspace
from fuseconv.matching.pattern import Pattern
from fuseconv.matching.plan import run_stage
from fuseconv.proof.difference import agree_in_float64
from fuseconv.proof.edges import BEYOND_A_BYTE, Edges, edges_of
from fuseconv.proof.example import Text
from fuseconv.proof.operands import ORDINARY, OVERFLOWING, VALUES, Values, described, differing, draw_operands, takes
from fuseconv.proof.redrawn import JUDGES
from fuseconv.proof.traced import Traced, trace
from fuseconv.proof.variants import MOST, in_dtypes, variants
from fuseconv.rulebook.rule import Rule

NO_PROGRAM = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""What a variant raises that is no program: RuleTextError is a ValueError, GuardError and what is not implemented are
RuntimeErrors."""


@dataclass(frozen=True)
class Pair:
    """A program and what a rule makes of it, as graphs of the same placeholders.

    Attributes:
        changed: what the program has of its own, against the example.
        text: the program as text.
        traced: the program as a graph.
        parameters: its parameters.
        before: its graph, of its parameters and its inputs.
        after: the rewritten one; what was computed at conversion is computed in it.
        applied: how many times the rule applied.
        edges: what both graphs tell of the values to try them on.
        rule: the rule.
        seed: of the parameters.
    """

    changed: str
    text: Text
    traced: Traced
    parameters: tuple[torch.Tensor, ...]
    before: Graph
    after: Graph
    applied: int
    edges: Edges
    rule: Rule
    seed: int


def applied(rule: Rule, patterns: Sequence[Pattern], text: Text, changed: str, seed: int) -> Pair | None:
    """Returns a program before and after a rule; None where it is no program, or the rule does not apply."""
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", seed).tensors
    parameters = dict(zip(text.parameters, drawn, strict=True))
    try:
        traced = trace(text, parameters)
    except NO_PROGRAM:
        return None
    workspace = Workspace(traced)
    if workspace.mode is not None and workspace.mode.shape_env is None:
        workspace.results = _results(rule.name)
    steps = [step for step, _ in run_stage(workspace, rule.stage, [(rule, tuple(patterns))]) if step]
    if not steps:
        return None
    after = _rewritten(workspace, traced)
    edges = edges_of((traced.graph, after), drawn)
    if edges.integers == "indices":
        edges = replace(edges, integers="signed")
    return Pair(changed, text, traced, drawn, traced.graph, after, len(steps), edges, rule, seed)


@lru_cache(maxsize=1)
def _results(rule: str) -> dict[Any, Any]:
    """What the replacements of a rule gave in programs whose sizes are numbers, which have one fake mode."""
    del rule
    return {}


def _rewritten(workspace: Workspace, traced: Traced) -> Graph:
    """The rewritten graph, with the placeholders of the program, and constants as the ops that compute them."""
    graph = Graph()
    known = {node.name: graph.placeholder(node.name) for node in traced.graph.find_nodes(op="placeholder")}
    copies: dict[Node, Node] = {}

    def copy(node: Node) -> Node:
        if node not in copies:
            deferred = workspace.deferred(node)
            if deferred is not None:
                args, kwargs = map_arg((deferred.args, dict(deferred.kwargs)), copy)
                copies[node] = graph.call_function(deferred.op, args, kwargs)
            else:
                copies[node] = known[node.name] if node.op == "placeholder" else graph.node_copy(node, copy)
        return copies[node]

    for node in workspace.graph.nodes:
        if node.op != "placeholder":
            copy(node)
    return graph


def counter_example(pair: Pair, draw: Draw) -> str:
    """Runs both graphs on one draw and says how they differ, with the operands; nothing when they do not."""
    drawn = draw_operands(
        pair.traced.inputs,
        draw.size,
        draw.values,
        draw.seed,
        edges=pair.edges,
        domain=pair.rule.domain,
        long=draw.long,
    )
    operands = (*pair.parameters, *drawn.tensors)
    ordinary, overflowing = draw.values in ORDINARY, draw.values in OVERFLOWING
    found = JUDGES[pair.rule.draws](pair.before, pair.after, operands, ordinary=ordinary, overflowing=overflowing)
    if found and not _is_as_written(pair) and agree_in_float64(pair.before, pair.after, operands):
        return ""  # of other sizes and arguments the meaning is tried, not the rounding: a norm of one number is 0 / 0
    given = ", ".join(described((*pair.text.parameters.values(), *pair.traced.inputs), operands))
    return f"{found}; {pair.changed}, {drawn.drawn}, {given}" if found else ""


def _is_as_written(pair: Pair) -> bool:
    """Whether a program is an example, but for its dtypes."""
    return pair.changed == "as written" or (" as " in pair.changed and "sizes" not in pair.changed)


@dataclass(frozen=True)
class Draw:
    """How operands are drawn: the least size, the values, the seed, a symbolic size that is long."""

    size: int
    values: Values
    seed: int
    long: tuple[str, int] | None = None


EVERY = (
    *(Draw(5, values, seed) for seed, values in enumerate(VALUES)),
    Draw(1, "random", 20),
    Draw(5, "edge", 21),
)
MANY = Draw(40, "edge", 22)
"""Enough elements for each edge to be one of them."""

"""The draws for an example as it is written, and in every dtype."""


def draws_of(pair: Pair) -> Sequence[Draw]:
    """Returns how operands of a program are drawn: those of an example, in every dtype, in every way that differs."""
    if pair.changed.endswith(f" as {BEYOND_A_BYTE}") and _elements(pair.traced.graph) > MOST:
        return []  # made long by a variant, not by whoever wrote the example
    if not _is_as_written(pair):
        return [Draw(5, "random", pair.seed), Draw(5, "edge", pair.seed)]
    dtypes = {spec.dtype for spec in pair.traced.inputs}
    apart = differing(dtypes, pair.edges)
    drawn = [draw for draw in EVERY if draw.values in apart and takes(pair.rule, pair.after, draw.values)]
    if _fits(pair, dict.fromkeys(_dims(pair), MANY.size + 2 * len(_dims(pair)))):
        drawn.append(MANY)
    length = pair.edges.length()
    long = [name for name in _dims(pair) if _fits(pair, {**dict.fromkeys(_dims(pair), 9), name: length})]
    return [*drawn, *(Draw(5, "random", 23, (name, length)) for name in long)]


def _dims(pair: Pair) -> list[str]:
    return list(dict.fromkeys(dim.name for spec in pair.traced.inputs for dim in spec.dims()))


def _fits(pair: Pair, sizes: Mapping[str, int]) -> bool:
    """Whether no operand has many elements at some sizes; what is computed of them may have more."""
    return all(math.prod(spec.sizes(sizes)) <= MOST >> 4 for spec in pair.traced.inputs)


def _elements(graph: Graph) -> int:
    """Returns how many elements the largest tensor of a graph has whose sizes are numbers."""
    shapes = [node.meta["val"].shape for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return max((math.prod(shape) for shape in shapes if all(isinstance(size, int) for size in shape)), default=0)


def pairs(rule: Rule, patterns: Sequence[Pattern], text: Text, *, vary: bool) -> Iterator[Pair]:
    """Yields an example, and its variants if asked to, where a rule applies; else the example in other dtypes."""
    if (pair := applied(rule, patterns, text, "as written", 0)) is not None:
        yield pair
    for seed, (changed, variant) in enumerate(variants(text) if vary else in_dtypes(text), 1):
        if (pair := applied(rule, patterns, variant, changed, seed)) is not None:
            yield pair

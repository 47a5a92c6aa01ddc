"""Tests a rule numerically: wherever the rule applies, the replacement must give the same results.

The test programs are the rule's examples and variants of them. The matcher decides where the rule applies, so that the
rule's conditions are tested too. The program is run before and after the rewrite. The results are compared with each
other and with a float64 run of the original program, within the tolerances of tolerance.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from fuseconv.proof.redrawn import COMPARISONS
from fuseconv.proof.traced import Traced, trace
from fuseconv.proof.variants import MOST
from fuseconv.rulebook.rule import Rule

NO_PROGRAM = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""The exceptions that a variant raises if it is not a valid program. RuleTextError is a ValueError; GuardError and
NotImplementedError are RuntimeErrors."""


@dataclass(frozen=True)
class Pair:
    """A program before and after a rule, as two graphs with the same placeholders.

    Attributes:
        changed: how the program differs from the example, as text: `as written` for the example itself.
        text: the program as parsed SSA lines.
        traced: the program, traced on fake tensors.
        parameters: the parameters of the program.
        before: the graph of the program, with its parameters and inputs as placeholders.
        after: the rewritten graph. It also contains the ops that compute constants.
        applied: the number of times that the rule was applied.
        edges: the values at which ops of both graphs change behavior.
        rule: the rule that rewrites `before` to `after`.
        seed: the seed from which the parameters were generated.
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
    """Applies a rule to a program given as text.

    Returns the graphs before and after the rewrite, or None if the program is invalid or the rule does not apply.
    """
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", seed).tensors
    parameters = dict(zip(text.parameters, drawn, strict=True))
    try:
        traced = trace(text, parameters)
    except NO_PROGRAM:
        return None
    workspace = Workspace(traced)
    static = workspace.mode is not None and workspace.mode.shape_env is None
    workspace.results = _results(rule.name) if static else traced.results
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
    """Returns the cache of op results on fake tensors that all static-size programs of one rule share."""
    del rule
    return {}


def _rewritten(workspace: Workspace, traced: Traced) -> Graph:
    """Returns the rewritten graph with the placeholders of the program.

    A constant that is computed at conversion is replaced by the op that computes it.
    """
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
    """Runs both graphs on one set of random operands and compares their results.

    Returns a description of the first difference and of the operands, or an empty string if the results agree. For a
    variant whose sizes or arguments differ from the example, graphs that agree in float64 count as equal.

    PyTorch computes both without oneDNN, whose results for NaN in bf16 depend on the instructions of the processor.
    """
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
    compare = COMPARISONS[pair.rule.draws]
    with _without_onednn():
        found = compare(pair.before, pair.after, operands, ordinary=ordinary, overflowing=overflowing).difference
    if found and not _is_as_written(pair) and agree_in_float64(pair.before, pair.after, operands):
        return ""  # rounding is tested only at the sizes and arguments of the example: a norm of one number is 0 / 0
    given = ", ".join(described((*pair.text.parameters.values(), *pair.traced.inputs), operands))
    return f"{found}; {pair.changed}, {drawn.drawn}, {given}" if found else ""


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Disables oneDNN. `torch.backends.mkldnn.flags` would also set an option for Intel GPUs, and warn about it."""
    settings: Any = torch.backends.mkldnn
    before, settings.enabled = settings.enabled, False
    try:
        yield
    finally:
        settings.enabled = before


def _is_as_written(pair: Pair) -> bool:
    """Returns whether a program is an example as written, or differs from the example only in dtypes."""
    return pair.changed == "as written" or (" as " in pair.changed and "sizes" not in pair.changed)


@dataclass(frozen=True)
class Draw:
    """The parameters of one set of random operands; see `draw_operands`.

    Attributes:
        size: the smallest symbolic size.
        values: the kind of random values, such as `edge`.
        seed: the seed of the random generator.
        long: the name and value of one symbolic size that is much larger than the others, or None.
    """

    size: int
    values: Values
    seed: int
    long: tuple[str, int] | None = None


EVERY = (
    *(Draw(5, values, seed) for seed, values in enumerate(VALUES)),
    Draw(1, "random", 20),
    Draw(5, "edge", 21),
)
"""The sets of random operands for an example, as written and in every dtype."""

MANY = Draw(40, "edge", 22)
"""A set of random operands with so many elements that every edge occurs."""


def draws_of(pair: Pair, *, few: bool = False) -> Sequence[Draw]:
    """Returns the sets of random operands on which a program is tested.

    A variant is tested on two sets, or on none if a tensor is too large. An example is tested on one set for each kind
    of values that may make a difference, on one set with many elements, and on one set for each size that may be long.

    Args:
        pair: the program to test.
        few: whether to test an example on only two sets too.
    """
    if pair.changed.endswith(f" as {BEYOND_A_BYTE}") and _elements(pair.traced.graph) > MOST:
        return []  # made long by a variant, not by the author of the example
    if few or not _is_as_written(pair):
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
    """Returns whether every input is small enough at the given sizes. Intermediate values may be larger."""
    return all(math.prod(spec.sizes(sizes)) <= MOST >> 4 for spec in pair.traced.inputs)


def _elements(graph: Graph) -> int:
    """Returns the number of elements of the largest tensor with static sizes in a graph, or 0 if there is none."""
    shapes = [node.meta["val"].shape for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return max((math.prod(shape) for shape in shapes if all(isinstance(size, int) for size in shape)), default=0)


def pairs(rule: Rule, patterns: Sequence[Pattern], text: Text, changes: Iterable[tuple[str, Text]]) -> Iterator[Pair]:
    """Yields the graphs before and after the rewrite, for the example and each variant to which the rule applies."""
    if (pair := applied(rule, patterns, text, "as written", 0)) is not None:
        yield pair
    for seed, (changed, variant) in enumerate(changes, 1):
        if (pair := applied(rule, patterns, variant, changed, seed)) is not None:
            yield pair

"""A rule proved on numbers: wherever it applies, what it puts in place gives what was there.

The programs are variants of the rule's examples, and the matcher itself decides where the rule applies, so that its
conditions are tried as they are used. Both forms are run, and judged by the matched one in float64, at the tolerances
of tolerance.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from fuseconv.matching.graph import Workspace
from fuseconv.matching.pattern import Pattern
from fuseconv.matching.plan import run_stage
from fuseconv.proof.example import Text
from fuseconv.proof.operands import VALUES, Values, described, draw_operands
from fuseconv.proof.redrawn import JUDGES
from fuseconv.proof.traced import Traced, trace
from fuseconv.proof.variants import variants
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
        draws: what the rule says of the numbers that are drawn.
    """

    changed: str
    text: Text
    traced: Traced
    parameters: tuple[torch.Tensor, ...]
    before: Graph
    after: Graph
    applied: int
    draws: str


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
    return Pair(changed, text, traced, drawn, traced.graph, _rewritten(workspace, traced), len(steps), rule.draws)


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
    drawn = draw_operands(pair.traced.inputs, draw.size, draw.values, draw.seed)
    operands = (*pair.parameters, *drawn.tensors)
    found = JUDGES[pair.draws](pair.before, pair.after, operands, narrow=draw.narrow)
    given = ", ".join(described((*pair.text.parameters.values(), *pair.traced.inputs), operands))
    return f"{found}; {pair.changed}, {drawn.drawn}, {given}" if found else ""


@dataclass(frozen=True)
class Draw:
    """How operands are drawn; `narrow` numbers are judged in the dtypes of the program."""

    size: int
    values: Values
    seed: int
    narrow: bool


EVERY = (
    *(Draw(5, values, seed, values in ("random", "non-contiguous")) for seed, values in enumerate(VALUES)),
    Draw(1, "random", 7, False),
)
"""The draws for an example as it is written."""


def takes(lines: Sequence[str], values: Values) -> bool:
    """Whether a replacement, by its lines or its ops, is held to give what it replaces on such values.

    Attention kernels leave out what is hidden: there 0 times NaN is 0, and so is a softmax of nothing.
    """
    return values not in ("NaN", "infinite") or not any("scaled_dot_product_attention" in line for line in lines)


def pairs(rule: Rule, patterns: Sequence[Pattern], text: Text, *, vary: bool) -> Iterator[tuple[Pair, Sequence[Draw]]]:
    """Yields an example, and its variants if asked to, where a rule applies, with how to draw their operands."""
    if (pair := applied(rule, patterns, text, "as written", 0)) is not None:
        called = [str(node.target) for node in pair.after.nodes]
        yield pair, [draw for draw in EVERY if takes(called, draw.values)]
    for seed, (changed, variant) in enumerate(variants(text) if vary else (), 1):
        if (pair := applied(rule, patterns, variant, changed, seed)) is not None:
            yield pair, (Draw(5, "random", seed, " as " in changed and "sizes" not in changed),)

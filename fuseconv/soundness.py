"""A rule proved on numbers: wherever it applies, what it puts in place gives what was there.

The programs are variants of the rule's examples, and the matcher itself decides where the rule applies, so that its
conditions are tried as they are used. Both forms are run, and judged by the matched one in float64, at the tolerances
of tolerance.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter

from fuseconv.difference import difference
from fuseconv.example import Text
from fuseconv.graph import Workspace
from fuseconv.operands import VALUES, Values, described, draw_operands
from fuseconv.pattern import Pattern
from fuseconv.plan import run_stage
from fuseconv.rule import Rule
from fuseconv.rule_text import RuleTextError
from fuseconv.sizes import GuardError
from fuseconv.traced import Traced, trace
from fuseconv.truth import interpret_in_float64
from fuseconv.variants import variants

NO_PROGRAM = (
    RuleTextError,
    GuardError,
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    NotImplementedError,
    AssertionError,
)
"""What a variant raises that is no program."""


@dataclass(frozen=True)
class Pair:
    """A program and what a rule makes of it, as graphs of the same placeholders.

    Attributes:
        changed: what the program has of its own, against the example.
        text: the program as text.
        traced: the program as a graph.
        parameters: its parameters.
        before: its graph, run on its parameters and its inputs.
        after: the rewritten one.
        applied: how many times the rule applied.
    """

    changed: str
    text: Text
    traced: Traced
    parameters: tuple[torch.Tensor, ...]
    before: GraphModule
    after: GraphModule
    applied: int


def applied(rule: Rule, patterns: Sequence[Pattern], text: Text, changed: str, seed: int) -> Pair | None:
    """Returns a program before and after a rule; None where it is no program, or the rule does not apply."""
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", seed).tensors
    parameters = dict(zip(text.parameters, drawn, strict=True))
    try:
        traced = trace(text, parameters)
        before = GraphModule(torch.nn.Module(), traced.graph)
        _run(before, (*drawn, *draw_operands(traced.inputs, 5, "random", seed).tensors))
    except NO_PROGRAM:
        return None
    workspace = Workspace(traced)
    steps = [step for step, _ in run_stage(workspace, rule.stage, [(rule, tuple(patterns))]) if step]
    if not steps:
        return None
    return Pair(changed, text, traced, drawn, before, _module(workspace, traced), len(steps))


def _module(workspace: Workspace, traced: Traced) -> GraphModule:
    """The rewritten graph, with its placeholders as they were; what was computed at conversion becomes attributes."""
    graph, root, copies = Graph(), torch.nn.Module(), {}
    computed = workspace.computed()
    kept = {node.name: node for node in workspace.graph.nodes if node.op == "placeholder"}
    for node in traced.graph.find_nodes(op="placeholder"):
        copy = graph.placeholder(node.name)
        if node.name in kept:
            copies[kept[node.name]] = copy
    for node in workspace.graph.nodes:
        if node in copies or (node.op == "placeholder" and node.name not in computed):
            continue
        if node.name in computed:
            root.register_buffer(node.name, computed[node.name])
            copies[node] = graph.get_attr(node.name)
        else:
            copies[node] = graph.node_copy(node, lambda operand: copies[operand])
    return GraphModule(root, graph)


def counter_example(pair: Pair, draw: Draw) -> str:
    """Runs both graphs on one draw and says how they differ, with the operands; nothing when they do not.

    A program that cannot run on the draw, where an index is out of range, shows nothing. Numbers that are not ordinary
    may overflow in a narrow dtype in one form and not in the other: then both forms must agree in float64.
    """
    drawn = draw_operands(pair.traced.inputs, draw.size, draw.values, draw.seed)
    operands = (*pair.parameters, *drawn.tensors)
    try:
        original = _run(pair.before, operands)
        truth = interpret_in_float64(pair.before, _clones(operands))
    except (RuntimeError, IndexError):
        return ""
    try:
        found = difference(_run(pair.after, operands), original, truth)
        if found and not draw.narrow:
            found = difference(interpret_in_float64(pair.after, _clones(operands)), truth, truth)
    except (RuntimeError, IndexError) as problem:
        found = f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"
    given = ", ".join(described((*pair.text.parameters.values(), *pair.traced.inputs), operands))
    return f"{found}; {pair.changed}, {drawn.drawn}, {given}" if found else ""


def _clones(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]


def _run(module: GraphModule, operands: Sequence[torch.Tensor]) -> Any:
    with torch.no_grad():
        return Interpreter(module).run(*_clones(operands))


@dataclass(frozen=True)
class Draw:
    """How operands are drawn; `narrow` numbers are judged in the dtypes of the program."""

    size: int
    values: Values
    seed: int
    narrow: bool


EVERY = (
    *(Draw(5, values, seed, values == "random") for seed, values in enumerate(VALUES)),
    Draw(1, "random", 7, False),
)
"""The draws for an example as it is written."""


def pairs(rule: Rule, patterns: Sequence[Pattern], text: Text, *, vary: bool) -> Iterator[tuple[Pair, Sequence[Draw]]]:
    """Yields an example, and its variants if asked to, where a rule applies, with how to draw their operands."""
    if (pair := applied(rule, patterns, text, "as written", 0)) is not None:
        # Attention kernels leave out what is hidden: there 0 times NaN is 0, and so is a softmax of nothing.
        hides = any("scaled_dot_product_attention" in line for line in rule.replace)
        yield pair, [draw for draw in EVERY if not (hides and draw.values in ("NaN", "infinite"))]
    for seed, (changed, variant) in enumerate(variants(text) if vary else (), 1):
        if (pair := applied(rule, patterns, variant, changed, seed)) is not None:
            yield pair, (Draw(5, "random", seed, " as " in changed and "sizes" not in changed),)

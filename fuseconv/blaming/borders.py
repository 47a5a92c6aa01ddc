"""Finds the borders of a program. A border is a tensor that both the program and its fused form compute.

At a border, the values from the original, the fused program and every target are compared with each other and with a
float64 reference. A step of a plan is one rewrite of the graph by a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph.aliases import Aliases
from fuseconv.graph.nodes import is_getitem, op_name, source_line
from fuseconv.matching.rewrite import rewrite_named
from fuseconv.matching.steps import Plan, Step
from fuseconv.program.captured import Program


@dataclass(frozen=True)
class Border:
    """A tensor that both a captured program and its fused form compute.

    Attributes:
        node: the name of the value's node in the captured program.
        twin: the name of the node in the fused program that computes the same value.
        layer: the path of the innermost module that computes the value. Empty for the model itself.
        op: the name of the op that computes the value in the fused program.
        rule: the name of the rule, if the value is a result of a match. Empty if no match computes the value.
        match: the names of the nodes in this match. Empty if no match computes the value.
        line: the source line of the model that computes the value. Empty if unknown.
        ends: whether the value is used by another module, is a result of a match, or is an output of the program.
    """

    node: str
    twin: str
    layer: str
    op: str
    rule: str = ""
    match: tuple[str, ...] = ()
    line: str = ""
    ends: bool = True

    def __str__(self) -> str:
        rule = f", rule {self.rule}" if self.rule else ""
        return f"{self.node} ({self.op}{rule}{f' in {self.layer}' if self.layer else ''})"


@dataclass(frozen=True, eq=False)
class Pair:
    """A captured program and its fused form.

    Attributes:
        program: the captured program.
        fused: the fused program, which is the captured program rewritten by the plan.
        plan: the plan, which lists the matches to replace.
        borders: the tensors that both programs compute, in the order of the captured program's nodes.
    """

    program: Program
    fused: Program
    plan: Plan
    borders: tuple[Border, ...]

    @staticmethod
    def of(program: Program, plan: Plan) -> Pair:
        """Rewrites a program by a plan, finds the borders, and returns the pair.

        Raises:
            RuleError: the plan cannot be applied to the program.
        """
        fused, twins = rewrite_named(program, plan)
        return Pair(program, fused, plan, tuple(_borders(program, fused, plan, twins)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the nodes that the fused program returns, in order."""
        returned: Any = self.fused.exported.graph.output_node().args[0]
        return tuple(node.name for node in returned)

    @property
    def ends(self) -> tuple[Border, ...]:
        """The borders that are results of a module, of a match or of the program, in order."""
        return tuple(border for border in self.borders if border.ends)


def _borders(program: Program, fused: Program, plan: Plan, twins: Mapping[str, str]) -> Iterator[Border]:
    nodes = {node.name: node for node in fused.exported.graph.nodes}
    written = [Aliases(one.exported.graph, one.exported.graph_module) for one in (program, fused)]
    results = {name: step for step in plan.applied for name in step.results.values()}
    taken: set[str] = set()
    for node in program.exported.graph.nodes:
        twin = nodes.get(twins.get(node.name, ""))
        if node.op != "call_function" or twin is None or twin.op != "call_function" or twin.name in taken:
            continue
        # The content of a tensor that is overwritten later depends on when it is read, so it cannot be compared.
        if not _is_tensor(node) or any(
            aliases.is_written(one) for aliases, one in zip(written, (node, twin), strict=True)
        ):
            continue
        taken.add(twin.name)
        step = results.get(node.name)
        yield Border(
            node.name,
            twin.name,
            layer_of(node),
            op_of(twin),
            "" if step is None else step.rule,
            () if step is None else step.nodes,
            source_line(node),
            step is not None or _leaves_module(node),
        )


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def layer_of(node: Node) -> str:
    """Returns the path of the innermost module that a node belongs to, or an empty string for the model itself."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    return str([*stack.values()][-1][0]) if stack else ""


def op_of(node: Node) -> str:
    """Returns the name of the op that computes a node's value. For a getitem node, returns its operand's op."""
    source: Any = node.args[0] if is_getitem(node) else node
    return op_name(source.target)


def _leaves_module(node: Node) -> bool:
    here = layer_of(node)
    return any(user.op == "output" or layer_of(user) != here for user in node.users)


def step_of(plan: Plan, border: Border) -> Step | None:
    """Returns the rewrite in a plan that computes a border's value, or None if no rewrite computes it."""
    return next((step for step in plan.applied if border.node in step.results.values()), None)

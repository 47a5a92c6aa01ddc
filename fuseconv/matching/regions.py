"""The regions of a graph that the stage `search` may compute in another form, and the steps that replace them.

A region is a connected subgraph of ops that occur in the rules of the stage `search`, on tensors of one dtype. No path
leads out of a region and back into it, so that the region can be replaced as a whole. A text without node names
identifies each region. So equal layers have the same text, and another capture of the model gives the same texts. A
form of a region is a list of rule lines that compute the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.errors import RuleError
from fuseconv.graph.nodes import arguments, draws, facts_of
from fuseconv.matching.bindings import to_binding
from fuseconv.matching.graph import Workspace, is_call, nodes_in, op_name, source_line
from fuseconv.matching.match import check_users, insertion_point
from fuseconv.matching.pattern import compile_rule
from fuseconv.matching.rewrite import apply
from fuseconv.matching.steps import SEARCH, Form, Forms, Miss, Step
from fuseconv.matching.types import Dims, type_text
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import RuleTextError, names_of, parse_line

LARGEST = 24
"""The maximum number of ops of a region."""


@dataclass(frozen=True)
class Region:
    """A subgraph that may be replaced as a whole.

    Attributes:
        nodes: the ops, in execution order.
        names: maps each operand and op to its name in `text`.
        results: the nodes whose values are used outside the region.
        text: the types of the operands, the ops as rule lines, and the names of the results, separated by semicolons.
    """

    nodes: tuple[Node, ...]
    names: Mapping[Node, str]
    results: tuple[Node, ...]
    text: str

    @property
    def operands(self) -> tuple[Node, ...]:
        """The nodes outside the region whose values the region uses."""
        return tuple(node for node in self.names if node not in self.nodes)


def ops_of(rules: Collection[Rule]) -> frozenset[str]:
    """Returns the names of the ops that the rules of the stage `search` match."""
    patterns = (pattern for rule in rules if rule.stage == SEARCH for pattern in compile_rule(rule))
    return frozenset(str(op) for pattern in patterns for op in pattern.ops)


def search_rule(rules: Collection[Rule]) -> Rule:
    """Returns the rule under which the numerical tests check a new form of a region, whatever rules produced the form.

    The domain of the rule contains only the values for which every rule of the stage `search` holds.
    """
    domains = [rule.domain for rule in rules if rule.stage == SEARCH]
    largest = min((domain.largest for domain in domains if domain.largest is not None), default=None)
    finite = any(domain.finite for domain in domains)
    return Rule.model_construct(name=SEARCH, stage=SEARCH, doc="Another form.", largest=largest, finite=finite)


def regions(workspace: Workspace, ops: Collection[str], dims: Dims) -> Iterator[Region]:
    """Yields the regions of a graph, in execution order.

    Args:
        workspace: the graph to partition.
        ops: the names of the ops that may be in a region, from `ops_of`.
        dims: the names of the symbolic sizes of the graph, from `named_dims`.
    """
    places = {node: at for at, node in enumerate(workspace.graph.nodes)}
    above: dict[Node, int] = {}  # a bit mask of the node itself and all nodes on which it depends
    region_of: dict[Node, list[Node]] = {}
    for node, at in places.items():
        above[node] = 1 << at
        for operand in node.all_input_nodes:
            above[node] |= above[operand]
        if _may_take_part(workspace, node, ops):
            members = [node]
            for operand in sorted(node.all_input_nodes, reverse=True):
                other = region_of.get(operand, [])
                if other and other is not members and _is_convex([*other, *members], places, above):
                    members = sorted({*other, *members})
            region_of.update(dict.fromkeys(members, members))
    for nodes in dict.fromkeys(map(tuple, region_of.values())):
        found = _region(workspace, nodes, dims)
        if found is not None:
            yield found


def _may_take_part(workspace: Workspace, node: Node, ops: Collection[str]) -> bool:
    """Returns whether a node may belong to a region.

    The node must call one of the ops, without random numbers or in-place writes, on floating-point tensors of a single
    dtype and device. No op may write these tensors in place.
    """
    if not is_call(node) or op_name(node.target) not in ops or draws(node) or facts_of(node).writes:
        return False
    value = node.meta.get("val")
    tensors: list[Any] = [operand.meta.get("val") for operand in node.all_input_nodes]
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and all(isinstance(one, torch.Tensor) for one in tensors)
        and all((one.dtype, one.device) == (value.dtype, value.device) for one in tensors)
        and not any(workspace.aliases.is_written(one) for one in (node, *node.all_input_nodes))
        and call_text(node, dict.fromkeys(node.all_input_nodes, "x")) is not None
    )


def _is_convex(members: Sequence[Node], places: Mapping[Node, int], above: Mapping[Node, int]) -> bool:
    inside = sum(1 << places[node] for node in set(members))
    outside = {operand for node in members for operand in node.all_input_nodes}.difference(members)
    return len(members) <= LARGEST and not any(above[operand] & inside for operand in outside)


def _region(workspace: Workspace, nodes: tuple[Node, ...], dims: Dims) -> Region | None:
    members = frozenset(nodes)
    operands = dict.fromkeys(operand for node in nodes for operand in node.all_input_nodes if operand not in members)
    names = {node: f"v{at}" for at, node in enumerate((*operands, *nodes))}
    results = tuple(node for node in nodes if not members.issuperset(node.users))
    try:
        check_users(members, frozenset(results))
        insertion_point(members, frozenset(operands), frozenset(results))
    except Refused:
        return None
    kinds = {True: "constant ", False: ""}
    lines = [
        *(
            f"{names[node]}: {kinds[workspace.is_constant(node)]}{type_text(node.meta['val'], dims)}"
            for node in operands
        ),
        *(str(_line(node, names)) for node in nodes),
        f"return {', '.join(names[node] for node in results)}",
    ]
    return Region(nodes, names, results, "; ".join(lines))


def _line(node: Node, names: Mapping[Node, str]) -> str | None:
    text = call_text(node, names)
    return None if text is None else f"{names.get(node, '_')} = {text}"


def call_text(node: Node, names: Mapping[Node, str]) -> str | None:
    """Returns an op call as the right-hand side of a rule line, or None if an argument cannot be written in a rule."""
    assert isinstance(node.target, torch._ops.OpOverload)
    words, given, by_name = [], arguments(node), False
    for argument in node.target._schema.arguments:
        value = given[argument.name]
        if argument.has_default_value() and not isinstance(value, Node) and value == argument.default_value:
            by_name = True
            continue
        if (word := term_text(value, names)) is None:
            return None
        by_name |= argument.kwarg_only
        words.append(f"{argument.name}={word}" if by_name else word)
    return f"{op_name(node.target)}({', '.join(words)})"


def term_text(value: Any, names: Mapping[Node, str]) -> str | None:
    """Returns an argument as written in a rule line, or None if the rule language cannot express the argument."""
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, list | tuple):
        items = [term_text(item, names) for item in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if isinstance(value, torch.dtype):
        return SHORT_DTYPES.get(str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return None


def search_steps(
    workspace: Workspace, rules: Collection[Rule], forms: Forms, dims: Dims, rejected: Mapping[Any, Miss]
) -> Iterator[tuple[Step | None, Miss | None]]:
    """Replaces each region for which a form was chosen, and yields one (step, None) or (None, miss) at a time.

    A miss is a note about another form of a region, or the reason why the chosen form is not applied.

    Args:
        workspace: the graph, which is rewritten.
        rules: all rules. Only the rules of the stage `search` are used.
        forms: maps the text of a region to the form chosen for it.
        dims: the names of the symbolic sizes of the graph, from `named_dims`.
        rejected: maps each step that must not be executed, as (rule, nodes), to its miss.

    Raises:
        RuleError: the lines of a form are invalid.
    """
    for region in list(regions(workspace, ops_of(rules), dims)) if forms else []:
        if (form := forms.get(region.text)) is None:
            continue
        last, where = workspace.name(region.nodes[-1]), source_line(region.nodes[-1])
        for note in form.notes:
            yield None, Miss(SEARCH, last, note, "a faster form", note, where, last, refused=True)
        if form.lines:
            try:
                step = region_step(workspace, region, form)
                if (SEARCH, step.nodes) in rejected:
                    yield None, rejected[SEARCH, step.nodes]
                    continue
                apply(workspace, step)
            except RuleTextError as problem:
                what = f"the form of the region at {last} is invalid: {problem.what}"
                raise RuleError(what, where="; ".join(form.lines), fix=problem.fix) from None
            except Refused as problem:
                words = (f"expected {problem.expected}, found {problem.found}", problem.expected, problem.found)
                yield None, Miss(SEARCH, last, *words, where, last, refused=True)
            else:
                yield step, None


def region_step(workspace: Workspace, region: Region, form: Form) -> Step:
    """Returns the step that replaces a region by the lines of a form."""

    def operand(node: Node) -> str:
        user = next(user for user in region.nodes if node in nodes_in([*user.args, *user.kwargs.values()]))
        return workspace.name_used_by(user, node)

    read = {name for line in form.lines for name in names_of(parse_line(line).value)}
    used = [node for node in region.operands if region.names[node] in read]
    return Step(
        rule=SEARCH,
        stage=SEARCH,
        nodes=tuple(workspace.name(node) for node in region.nodes),
        ops=tuple(op_name(node.target) for node in region.nodes),
        bindings={region.names[node]: to_binding(node, operand) for node in used},
        results={region.names[node]: workspace.name(node) for node in region.results},
        replace=form.lines,
        strides="restored",
        choices=form.choices,
    )

"""Drafts a rule for the subgraph between two nodes of a program, and the files to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fuseconv.drafting.canonical import canonical
from fuseconv.drafting.pack import OpName, pack_files, replaced_by
from fuseconv.drafting.rule import pattern_of
from fuseconv.drafting.subgraph import Subgraph, between
from fuseconv.drafting.values import values_of
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

LONGEST_NAME = 60
"""The maximum length of the name of a rule."""


@dataclass(frozen=True)
class Draft:
    """A rule, and the files that hold it.

    Attributes:
        rule: the name of the rule.
        op: the op that replaces the subgraph, as in a rule.
        nodes: the nodes of the subgraph.
        places: the matches in the model, each as the names of its nodes.
        files: returns the text of each file by its path, given the rule file that the drafted one includes.
        is_pack: whether the files are those of a pack, in a folder. Otherwise there is one rule file.
    """

    rule: str
    op: str
    nodes: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]
    files: Callable[[str], Mapping[str, str]]
    is_pack: bool


def draft(
    program: Program,
    rules: Sequence[Rule],
    first: Sequence[str],
    last: Sequence[str],
    op: OpName,
) -> Draft:
    """Drafts a rule for the subgraph from the first nodes to the last nodes.

    Args:
        program: the captured program.
        rules: the rules; the canonical ones are applied before the nodes are looked up.
        first: the names of the first nodes.
        last: the names of the last nodes, whose values are the results.
        op: the op of the pack that replaces the subgraph.

    Raises:
        UsageError: see `subgraph.between`.
        UnsupportedError: the subgraph cannot be replaced by an op.
    """
    graph = canonical(program, rules)
    subgraph = between(graph, first, last)
    values = values_of(graph, subgraph)
    pattern = pattern_of(graph, subgraph, values)
    name = _unused(op.name.replace("_", "-"), rules)
    doc = f"{_said(subgraph)} in one op."
    rule = pattern.rule(name, doc, [replaced_by(op, values)])
    files = pack_files(op, rule, subgraph, values, pattern.example)
    nodes = tuple(graph.workspace.name(node) for node in subgraph.calls)
    return Draft(name, op.target, nodes, pattern.places, files, is_pack=True)


def _unused(name: str, rules: Sequence[Rule]) -> str:
    taken = {rule.name for rule in rules}
    name = "-".join(word for word in name.split("-") if word)[: LONGEST_NAME - len("-drafted")].strip("-")
    return f"{name}-drafted" if name in taken else name


def _said(subgraph: Subgraph) -> str:
    """Returns the ops of a subgraph in order, for a description."""
    names = []
    for node in subgraph.calls:
        assert isinstance(node.target, torch._ops.OpOverload)
        names.append(node.target._schema.name.partition("::")[2])
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]

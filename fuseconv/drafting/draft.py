"""Drafts a rule for a subgraph of a program, and generates the content of the files to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fuseconv.drafting.canonical import Canonical, canonical
from fuseconv.drafting.known import known_ops
from fuseconv.drafting.pack import OpName, pack_files, replaced_by
from fuseconv.drafting.rule import Pattern, pattern_of, proved
from fuseconv.drafting.subgraph import Subgraph, between
from fuseconv.drafting.values import Values, values_of
from fuseconv.errors import UsageError
from fuseconv.graph.nodes import op_name
from fuseconv.program.captured import Program
from fuseconv.rulebook.layout import laid_out
from fuseconv.rulebook.rule import Rule

LONGEST_NAME = 60
"""The maximum length of a rule's name."""


@dataclass(frozen=True)
class Draft:
    """A drafted rule, and the files that contain it.

    Attributes:
        rule: the name of the drafted rule.
        op: the op that replaces the subgraph, as written in a rule.
        nodes: the names of the op calls in the subgraph.
        places: the rule's matches in the model, each as the names of its nodes.
        files: a function that takes the path of the rule file to include, and returns the content of each file to
            write, by the path of the file.
        is_pack: whether the files form the folder of a pack. If not, there is one rule file.
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
    op: OpName | None,
) -> Draft:
    """Drafts a rule for the subgraph between the first and the last nodes, and returns the draft.

    Args:
        program: the captured program that contains the subgraph.
        rules: all rules. The rules of the stage `canonical` are applied before the nodes are looked up.
        first: the names of the first nodes.
        last: the names of the last nodes. Their values are the results.
        op: the name of the new op that replaces the subgraph. The draft is then a pack. None to search for an existing
            op that computes the subgraph.

    Raises:
        UsageError: the nodes do not enclose a subgraph (see `subgraph.between`), or no existing op computes the
            subgraph.
        UnsupportedError: the subgraph cannot be replaced by an op.
    """
    graph = canonical(program, rules)
    subgraph = between(graph, first, last)
    values, pattern = pattern_at(graph, subgraph)
    nodes = tuple(graph.workspace.name(node) for node in subgraph.calls)
    doc = f"{_said(subgraph)} in one op."
    if op is not None:
        name = _unused(op.name, rules)
        rule = pattern.rule(name, doc, [replaced_by(op, values)])
        files = pack_files(op, rule, subgraph, values, pattern.example)
        return Draft(name, op.target, nodes, pattern.places, files, is_pack=True)
    name = _unused("-".join(names_of(subgraph)), rules)
    failed = ""
    for line in known_ops(subgraph, values, pattern.example):
        target = line.partition(" = ")[2].partition("(")[0]
        for sizes in pattern.sizes:
            rule = pattern.rule(name, doc, [line], sizes)
            places, wrong = proved(graph, rule)
            if not wrong:
                return Draft(name, target, nodes, places, partial(_rule_file, rule), is_pack=False)
        failed = f": {target} computes the same on random numbers, but the rule fails its check: {wrong}"
    raise UsageError(
        f"no existing op computes {_said(subgraph)}{failed}",
        where=" ".join([*(f"--from {one}" for one in first), *(f"--to {one}" for one in last)]),
        fix="add --op NAME, which writes a rule pack with a new op",
    )


def pattern_at(graph: Canonical, subgraph: Subgraph) -> tuple[Values, Pattern]:
    """Returns the named values of a subgraph, and the pattern that matches the subgraph.

    Equal static sizes share one name, unless the pattern has more matches when every size has its own name.

    Raises:
        UnsupportedError: the subgraph cannot be written as a pattern; see `pattern_of`.
    """
    values = values_of(graph, subgraph)
    pattern = pattern_of(graph, subgraph, values)
    apart = values_of(graph, subgraph, shared=False)
    if len(apart.sizes) > len(values.sizes):
        other = pattern_of(graph, subgraph, apart)
        if len(other.places) > len(pattern.places):
            return apart, other
    return values, pattern


def _rule_file(rule: dict[str, Any], include: str) -> dict[str, str]:
    return {"rules.json": laid_out({"include": [include], "rules": [rule]})}


def names_of(subgraph: Subgraph) -> list[str]:
    """Returns the names of a subgraph's ops without namespace and overload, in execution order."""
    return [op_name(node.target).split(".")[1] for node in subgraph.calls]


def _unused(text: str, rules: Sequence[Rule]) -> str:
    """Returns a rule name made from the words of a string. Appends `-drafted` if another rule has this name."""
    taken = {rule.name for rule in rules}
    words = [word for word in text.replace("_", "-").split("-") if word]
    name = "-".join(words)[: LONGEST_NAME - len("-drafted")].rstrip("-")
    return f"{name}-drafted" if name in taken else name


def _said(subgraph: Subgraph) -> str:
    names = names_of(subgraph)
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]

"""Creates the rule for a subgraph: pattern, conditions and examples. Also finds the rule's matches in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseconv.drafting.canonical import Canonical
from fuseconv.drafting.conditions import conditions_of, sizes_of
from fuseconv.drafting.examples import Example, example_of, misses_of
from fuseconv.drafting.lines import lines_of
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Values
from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import source_line
from fuseconv.matching.graph import Workspace
from fuseconv.matching.match import match
from fuseconv.matching.pattern import compile_rule
from fuseconv.matching.search import Index
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.example import parse_example
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.rule_check import check_examples
from fuseconv.proof.soundness import NO_PROGRAM
from fuseconv.proof.traced import trace
from fuseconv.rulebook.entry import RuleEntry, expand
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import RuleTextError

STAGE = "structure"
"""The stage of a drafted rule. Rules of this stage match in the canonical graph, and run before the default rules of
the stage `fuse`."""


@dataclass(frozen=True)
class Pattern:
    """The parts of a rule that depend only on the subgraph, and not on the replacement.

    Attributes:
        match: the lines of the pattern.
        where: the conditions.
        example: the subgraph as a separate program, which the rule must match.
        misses: the examples that the rule must not match.
        places: the matches in the model, each as the names of its nodes.
        sizes: alternative lists of further conditions, from the weakest to the strictest. They are tried in order for a
            replacement that does not support all sizes.
    """

    match: list[str]
    where: list[str]
    example: Example
    misses: list[dict[str, Any]]
    places: tuple[tuple[str, ...], ...]
    sizes: list[list[str]]

    def rule(self, name: str, doc: str, lines: list[str], sizes: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the rule as an entry of a rule file.

        Args:
            name: the name to use for the rule.
            doc: the description of the rule.
            lines: the lines of the replacement.
            sizes: further conditions on sizes.
        """
        return {
            "name": name,
            "stage": STAGE,
            "doc": doc,
            "match": self.match,
            "where": [*self.where, *sizes],
            "replace": lines,
            "examples": {"hit": [self.example.lines], "miss": self.misses},
        }


def pattern_of(graph: Canonical, subgraph: Subgraph, values: Values) -> Pattern:
    """Creates the pattern and an example of a subgraph, and finds the pattern's matches in the model.

    Raises:
        UnsupportedError: an argument cannot be written in a rule, no rule can replace the subgraph, or the subgraph
            cannot be run alone as an example.
    """
    lines, where = lines_of(subgraph, values), conditions_of(subgraph, values)
    probe = Rule.model_validate(
        {
            "name": "probe",
            "stage": STAGE,
            "doc": "The subgraph, replaced by itself.",
            "match": lines,
            "where": where,
            "replace": lines_of(subgraph, _renamed(values)),
        }
    )
    with quiet_torch():
        found, missed = match(Index(graph.workspace), compile_rule(probe))
        places = tuple(tuple(graph.workspace.name(node) for node in one.nodes) for one in found)
        last = subgraph.calls[-1]
        if last not in {node for one in found for node in one.nodes}:
            reason = next((miss.miss.reason for miss in missed if miss.anchor is last), "the pattern does not match")
            what = f"no rule can replace the subgraph at {graph.workspace.name(last)}: {reason}"
            raise UnsupportedError(what, where=source_line(last) or last.name, fix="choose other nodes")
        example = example_of(subgraph, values, lambda program: _applies(probe, program))
    if example is None:
        what = "the subgraph cannot be run alone, as an example of its rule"
        raise UnsupportedError(what, where=source_line(last) or last.name, fix="choose other nodes")
    return Pattern(lines, where, example, misses_of(values), places, sizes_of(values))


def proved(graph: Canonical, written: dict[str, Any]) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Finds the matches of a rule in the model, and checks the rule's examples.

    Args:
        graph: the canonical graph of the model, in which the rule is matched.
        written: the rule as an entry of a rule file.

    Returns:
        The matches, each as the names of its nodes, and the reason of the first failure. The reason is an empty string
        if the rule matches and all its examples pass.
    """
    (expanded,) = expand(RuleEntry.model_validate(written), {})
    rule = Rule.model_validate(expanded.fields)
    with quiet_torch():
        found, missed = match(Index(graph.workspace), compile_rule(rule))
        if not found:
            return (), max(missed, key=lambda one: one.found).miss.reason
        wrong = next((row.detail for row in check_examples(rule) if not row.ok), "")
    return tuple(tuple(graph.workspace.name(node) for node in one.nodes) for one in found), wrong


def _renamed(values: Values) -> Values:
    """Copies the values with new names for intermediate values, because a replacement cannot reuse the old names."""
    inner = {name if name in values.results else f"new_{name}": node for name, node in values.inner.items()}
    return replace(values, inner=inner)


def _applies(probe: Rule, program: list[str]) -> bool:
    """Returns whether a rule matches a program. Returns False if an op of the program rejects its operands."""
    try:
        text = parse_example(program)
        weights = draw_operands(tuple(text.parameters.values()), 3, "random", 0).tensors
        traced = trace(text, dict(zip(text.parameters, weights, strict=True)))
    except (RuleTextError, *NO_PROGRAM):
        return False
    return bool(match(Index(Workspace(traced)), compile_rule(probe))[0])

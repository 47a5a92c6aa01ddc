"""Computes the plan for a program and rules: applies each stage to a fixpoint and resolves overlapping matches.

Each round finds all matches of all rules of the stage. Of overlapping matches, the round keeps the match that saves
most passes over memory. It executes the kept matches on a working copy of the graph. The stage ends when a round finds
no match. The near misses that remain give the reasons why rules do not apply.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

from torch.fx import Node

from fuseconv.errors import FuseconvError, RuleError, is_out_of_memory
from fuseconv.matching.bindings import to_binding
from fuseconv.matching.graph import Workspace, map_nodes, op_name, source_line
from fuseconv.matching.loops import check_loops
from fuseconv.matching.match import Match
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern, compile_rule
from fuseconv.matching.regions import search_steps
from fuseconv.matching.replacement import settled
from fuseconv.matching.rewrite import apply
from fuseconv.matching.steps import SEARCH, Forms, Miss, Plan, Step, read_plan
from fuseconv.matching.types import named_dims
from fuseconv.matching.unforeseen import StepError
from fuseconv.matching.worklist import ALL, NEAR, Worklist
from fuseconv.program.captured import Program
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import STAGES, Rule
from fuseconv.rulebook.rule_text import names_of, parse_line

__all__ = ["Miss", "Plan", "Step", "plan", "read_plan"]

REPLACEMENTS = 100
"""The maximum number of times that a value is replaced in one stage. If it is exceeded, the rules form a rewrite
cycle."""

RECENT = 50
"""The number of most recent steps whose rules are named when a rewrite cycle is reported."""

APPLICATIONS_PER_NODE = 20
"""The maximum number of rule applications in one stage, per node of the program."""


UNFORESEEN = 20
"""The maximum number of matches that are excluded because their step raised an unexpected error."""

MatchKey: TypeAlias = tuple[str, tuple[str, ...]]
"""Identifies a match in all plans of one program: the name of the rule and the names of the matched nodes."""


def plan(
    program: Program,
    rules: Sequence[Rule],
    *,
    device: str,
    targets: Collection[str],
    allow: Collection[str] = (),
    rejected: Mapping[MatchKey, Miss] = MappingProxyType({}),
    forms: Forms = MappingProxyType({}),
) -> Plan:
    """Computes the plan for a program.

    Args:
        program: the captured program, which is not changed.
        rules: the rules to apply. Their order breaks ties.
        device: `cpu` or `cuda`. Rules for other devices are skipped.
        targets: the targets to write. If a rule does not support all of them, its matches become misses.
        allow: the `allow` names of the rules that change numerical results and may be applied.
        rejected: maps each match that must not be replaced to its miss.
        forms: maps the text of a region to the form chosen for it, which replaces the region before the stage
            `structure`.

    Returns:
        The plan: the steps in execution order, and the near misses in the order of the rules.

    Raises:
        RuleError: a rule does not match the ops of this process, or rules form a rewrite cycle.
    """
    left = dict(rejected)
    for _ in range(UNFORESEEN):
        try:
            return _plan(program, rules, device, targets, allow, left, forms)
        except StepError as broken:  # on a separate graph, which is discarded
            left[broken.key] = broken.miss
    return _plan(program, rules, device, targets, allow, left, forms)


def _plan(
    program: Program,
    rules: Sequence[Rule],
    device: str,
    targets: Collection[str],
    allow: Collection[str],
    rejected: Mapping[MatchKey, Miss],
    forms: Forms,
) -> Plan:
    used = [rule for rule in rules if is_for(rule, device, allow) and rule.stage in STAGES]
    others = {rule.name: reason for rule in used if (reason := _others(rule, targets))}
    patterns = {rule.name: compile_rule(rule) for rule in used}
    check_loops(compiled for name, compiled in patterns.items() if name not in others)
    workspace = Workspace(program.exported, trainable=program.trainable, results=program.results)
    steps: list[Step] = []
    misses: dict[tuple[str, str, str], Miss] = {}
    for stage in STAGES:
        of_stage = [(rule, patterns[rule.name]) for rule in used if rule.stage == stage]
        found = run_stage(workspace, stage, of_stage, rejected, others)
        if stage == "canonical" and forms:
            found = chain(found, search_steps(workspace, rules, forms, named_dims(program), rejected))
        for step, miss in found:
            if step is not None:
                steps.append(step)
            if miss is not None:
                misses.setdefault((miss.rule, miss.node, miss.reason if miss.rule == SEARCH else ""), miss)
    order = {rule.name: at for at, rule in enumerate(used)}
    return Plan(tuple(steps), tuple(sorted(misses.values(), key=lambda miss: order.get(miss.rule, len(order)))))


def is_for(rule: Rule, device: str, allow: Collection[str]) -> bool:
    return (rule.devices is None or device in rule.devices) and (rule.allow is None or rule.allow in allow)


def _others(rule: Rule, targets: Collection[str]) -> str:
    """Returns a message that names the targets a rule does not support, or an empty string if it supports all."""
    others = [] if rule.targets is None else sorted(set(targets) - set(rule.targets))
    named = ", ".join(rule.targets or ())
    return (
        f"rule {rule.name} supports only {named}, but this conversion also writes {', '.join(others)}" if others else ""
    )


def run_stage(
    workspace: Workspace,
    stage: str,
    rules: Sequence[tuple[Rule, tuple[Pattern, ...]]],
    rejected: Mapping[MatchKey, Miss] = MappingProxyType({}),
    others: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Step | None, Miss | None]]:
    """Applies the rules of one stage to a graph until no rule matches.

    Rules of the stage `search` are applied in a single round, because applying them repeatedly may never end.

    Args:
        workspace: the graph, which is rewritten.
        stage: the stage to apply.
        rules: the rules of the stage, with their compiled patterns.
        rejected: maps each match that must not be replaced to its miss.
        others: maps each rule whose matches must not be replaced, by name, to the reason.

    Yields:
        The steps as they are executed, then the remaining misses.

    Raises:
        RuleError: the rules form a rewrite cycle.
    """
    budget = APPLICATIONS_PER_NODE * (len(workspace.graph.nodes) + 10)
    worklist = Worklist(workspace, rules)
    last: deque[Step] = deque(maxlen=RECENT)
    replaced: Counter[str] = Counter()
    replaced_by: set[tuple[str, str]] = set()
    reach = ALL
    matches = worklist.matches(reach)
    # A step of another rule may remove a partial match, so near misses are recorded before the first step. Canonical
    # rules are omitted, because most of them match one of many spellings and are expected to miss.
    early = [miss.miss for miss in _nearest(worklist.misses())] if stage != "canonical" else []
    while True:
        keys = [(match.rule.name, tuple(workspace.name(node) for node in match.nodes)) for _, match in matches]
        yield from ((None, rejected[key]) for key in keys if key in rejected)
        yield from (
            (None, _left_alone(match, others[match.rule.name])) for _, match in matches if match.rule.name in others
        )
        chosen, losers = _without_overlaps(
            match
            for match, key in zip(matches, keys, strict=True)
            if key not in rejected and match[1].rule.name not in others
        )
        done = 0
        for step in _execute(workspace, stage, chosen):
            done += 1
            budget -= 1
            last.append(step)
            replaced.update(step.results.values())
            replaced_by.update((step.rule, node) for node in step.nodes)
            yield step, None
            if budget < 0 or any(replaced[node] > REPLACEMENTS for node in step.results.values()):
                raise _feeding(stage, last)
        for loser in losers:
            yield None, loser
        if stage == "search" or (reach == ALL and not done):
            break
        reach = NEAR if done else reach + 1
        matches = worklist.matches(reach)
    yield from ((None, miss.miss) for miss in _worth_a_line(list(worklist.misses()), stage))
    yield from ((None, miss) for miss in early if (miss.rule, miss.node) not in replaced_by)


def _without_overlaps(matches: Iterable[tuple[int, Match]]) -> tuple[list[Match], list[Miss]]:
    """Selects matches that share no node. Returns these matches in graph order, and the misses for other matches.

    Matches that save more passes over memory are selected first. Ties are broken by the order of the rules, then by the
    order of the nodes. A match that is not selected gives no miss if a match of its own rule, or a match that contains
    all its nodes, was selected instead.
    """
    taken: dict[Node, Match] = {}
    chosen: list[Match] = []
    losers: list[Miss] = []
    for _, match in sorted(matches, key=lambda item: (-item[1].saved, item[0], item[1].nodes[-1])):
        winner = next((taken[node] for node in match.nodes if node in taken), None)
        if winner is None:
            chosen.append(match)
            taken.update(dict.fromkeys(match.nodes, match))
        elif winner.rule is not match.rule and not set(match.nodes) <= set(winner.nodes):
            losers.append(_overlap(match, winner))
    return sorted(chosen, key=lambda match: match.nodes[-1]), losers


def _left_alone(match: Match, reason: str) -> Miss:
    last, count = match.nodes[-1], len(match.nodes)
    expected, _, found = reason.partition("; ")
    where = source_line(last)
    return Miss(match.rule.name, last.name, reason, expected, found, where, matched=count, ops=count, refused=True)


def _overlap(match: Match, winner: Match) -> Miss:
    shared = next(node.name for node in match.nodes if node in winner.nodes)
    other = f"a match of rule {winner.rule.name} at {winner.nodes[-1].name}"
    expected = f"{shared} to belong to this match alone"
    better = f"saves {winner.saved} ops instead of {match.saved}" if winner.saved > match.saved else "comes first"
    return Miss(
        match.rule.name,
        match.nodes[-1].name,
        f"overlaps with {other}, which {better}",
        expected,
        other,
        source_line(match.nodes[-1]),
        differs=shared,
        matched=len(match.nodes),
        ops=len(match.nodes),
        refused=True,
    )


def _execute(workspace: Workspace, stage: str, matches: Iterable[Match]) -> Iterator[Step]:
    """Executes the matches of one round and yields their steps.

    A match that no longer fits the graph after an earlier match is skipped; a later round may find it again.
    """
    for match in matches:
        captures = {name: map_nodes(value, workspace.current) for name, value in match.captures.items()}
        nodes, where = tuple(workspace.name(node) for node in match.nodes), source_line(match.nodes[-1])
        try:
            step = _step(workspace, stage, match, captures)
            apply(workspace, step)
        except Refused:
            continue
        except FuseconvError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise StepError(match.rule.name, nodes, where, error) from error
        yield step


def _step(workspace: Workspace, stage: str, match: Match, captures: Mapping[str, Any]) -> Step:
    """Converts a match to a step of the plan. The step refers to nodes by their names in the program."""
    lines = settled(match.replace, captures, workspace)
    used = {name for line in lines for name in names_of(parse_line(line).value)}

    def operand(node: Node) -> str:
        user = next((user for user in match.nodes if node in user.all_input_nodes), node)
        return workspace.name_used_by(user, node)

    return Step(
        rule=match.rule.name,
        stage=stage,
        nodes=tuple(workspace.name(node) for node in match.nodes),
        ops=tuple(op_name(node.target) for node in match.nodes),
        bindings={name: to_binding(value, operand) for name, value in sorted(captures.items()) if name in used},
        results={name: workspace.name(node) for name, node in match.results.items()},
        replace=lines,
        strides=match.rule.strides,
        draws=match.rule.draws,
        literals=match.literals,
    )


def _worth_a_line(misses: Sequence[NearMiss], stage: str) -> Iterator[NearMiss]:
    """Yields the misses worth reporting: refused matches, long partial matches, and the nearest miss of each rule.

    A miss is reported if at least two ops and half of the pattern matched, or if only what surrounds a match of a
    single op refuses it. For the nearest miss of a rule, a third of the pattern is enough. Of a canonical rule, only
    refused matches and the nearest miss are reported, because each canonical rule matches one of many spellings.
    """
    for miss in misses:
        half = miss.found >= 2 and 2 * miss.found >= miss.ops
        if (half and (miss.refused or stage != "canonical")) or (miss.fits and stage != "canonical"):
            yield miss
    yield from _nearest(misses)


def _nearest(misses: Iterable[NearMiss]) -> Iterator[NearMiss]:
    """Yields the nearest miss of each rule if at least two ops and a third of the pattern matched."""
    nearest: dict[str, NearMiss] = {}
    for miss in misses:
        if not miss.refused and miss.found > nearest.setdefault(miss.rule.name, miss).found:
            nearest[miss.rule.name] = miss
    yield from (miss for miss in nearest.values() if miss.found >= 2 and 3 * miss.found >= miss.ops)


def _feeding(stage: str, last: Collection[Step]) -> RuleError:
    *_, step = last
    return RuleError(
        f"stage {stage} does not terminate: {', '.join(sorted({step.rule for step in last}))} keep applying",
        where=f"node {step.nodes[-1]}",
        fix="remove one of the rules, or narrow one with `where` so that it does not match what the others produce",
    )

"""Explains a plan rule by rule: where the rule is applied, where it is rejected and why, and its nearest miss.

A miss is a subgraph that a rule matches only partly, or matches but may not replace.

`docs/explain.schema.json` is the schema of the output of `fuseconv explain --json`. The schema is generated from the
classes below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from fuseconv.matching.steps import SEARCH, Choice, Miss, Plan, Step
from fuseconv.rulebook.rule import STAGES, Rule

_Of = TypeVar("_Of", Step, Miss)


@dataclass(frozen=True)
class Applied:
    """A match that is replaced.

    Attributes:
        nodes: the matched nodes of the captured program, in execution order.
        replace: the lines that replace the nodes.
    """

    nodes: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True)
class LeftAlone:
    """A match that a bundle does not replace in some targets, because measurements found the replacement no faster.

    Attributes:
        nodes: the matched nodes of the captured program, in execution order.
        choices: maps each of these targets to the measured times of a call of the model.
    """

    nodes: tuple[str, ...]
    choices: Mapping[str, Choice]


@dataclass(frozen=True)
class Explained:
    """The result of one rule in a model.

    Attributes:
        rule: the name of the rule.
        stage: canonical, structure, fuse or search.
        family: the name of the rule file.
        applied: the matches that are replaced. For a bundle: the matches that are replaced in at least one target.
        left_alone: the matches of a bundle that are not replaced in some targets.
        rejected: the matches that are not replaced, each with the reason. For `search`: what is known about each form.
        near_miss: the attempt that matched most of the pattern where the rule is not applied: a rejected match if one
            exists, else a partial match, else null. `differs` is the first node that differs, `expected` and `found`
            describe the difference, `where` is the source line of the model, and `matched` of `ops` ops were found.
        near_misses: all partial matches. The match that covers most of the pattern comes first.
    """

    rule: str
    stage: str
    family: str
    applied: tuple[Applied, ...]
    left_alone: tuple[LeftAlone, ...]
    rejected: tuple[Miss, ...]
    near_miss: Miss | None
    near_misses: tuple[Miss, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanation of a plan: what each rule did in the model, and what it did not do.

    Attributes:
        rules: the result of each rule, in the order of the rules.
        near_misses: the nearest miss of each rule that has a near miss.
    """

    rules: tuple[Explained, ...]
    near_misses: tuple[Miss, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as plain JSON values that follow the schema."""
        value: dict[str, Any] = _EXPLANATION.dump_python(self, mode="json")
        return value


_EXPLANATION = TypeAdapter(Explanation)


def schema() -> str:
    """Returns the JSON schema of the output of `fuseconv explain --json`, as stored in `docs/explain.schema.json`."""
    return json.dumps(_EXPLANATION.json_schema(), indent=2) + "\n"


def explain(plan: Plan, rules: Sequence[Rule], targets: Sequence[str] = ()) -> Explanation:
    """Explains a plan rule by rule.

    Args:
        plan: the plan, including its misses.
        rules: the rules from which the plan was computed. Other rules that occur in steps come last, with an empty
            family.
        targets: the targets of the bundle, if the plan belongs to a bundle.
    """
    steps, misses = _by_rule(plan.steps), _by_rule(plan.misses)
    kinds: dict[str, tuple[str, str]] = {rule.name: (rule.stage, rule.family) for rule in rules if rule.stage in STAGES}
    kinds |= {step.rule: (step.stage, "") for step in plan.steps if step.rule not in kinds}
    kinds |= {SEARCH: (SEARCH, "")} if SEARCH in misses else {}
    told = tuple(
        _explained(name, *kind, steps.get(name, ()), misses.get(name, ()), targets) for name, kind in kinds.items()
    )
    return Explanation(told, tuple(one.near_miss for one in told if one.near_miss is not None))


def _by_rule(all_of: Sequence[_Of]) -> dict[str, list[_Of]]:
    table: dict[str, list[_Of]] = {}
    for one in all_of:
        table.setdefault(one.rule, []).append(one)
    return table


def _explained(
    rule: str, stage: str, family: str, steps: Sequence[Step], misses: Sequence[Miss], targets: Sequence[str]
) -> Explained:
    rejected = tuple(miss for miss in misses if miss.refused)
    near = tuple(sorted((miss for miss in misses if not miss.refused), key=_distance))
    return Explained(
        rule=rule,
        stage=stage,
        family=family,
        applied=tuple(
            Applied(step.nodes, step.replace) for step in steps if not targets or any(map(step.applies, targets))
        ),
        left_alone=tuple(LeftAlone(step.nodes, left) for step in steps if (left := step.left_alone())),
        rejected=rejected,
        near_miss=next(iter((*rejected, *near)), None),
        near_misses=near,
    )


def _distance(miss: Miss) -> tuple[float, int]:
    """Returns a key that sorts misses by the share of the pattern that matched, then by the number of matched ops."""
    return 1 - miss.matched / max(miss.ops, 1), -miss.matched


def alike(misses: Sequence[Miss]) -> list[tuple[Miss, int]]:
    """Groups misses whose reasons differ only in numbered names. Returns the first miss and the size of each group."""
    groups: dict[str, list[Miss]] = {}
    for miss in misses:
        groups.setdefault(re.sub(r"_\d+\b|\bs\d+\b", "", miss.reason), []).append(miss)
    return [(group[0], len(group)) for group in groups.values()]

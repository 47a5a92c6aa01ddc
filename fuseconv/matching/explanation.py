"""A plan, rule by rule: where it is applied, where it is rejected and why, and the attempt that got farthest.

`docs/explain.schema.json` is the form of `fuseconv explain --json`; it is generated from the nouns below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from fuseconv.matching.steps import Miss, Plan, Step
from fuseconv.rulebook.rule import Rule

_Of = TypeVar("_Of", Step, Miss)


@dataclass(frozen=True)
class Applied:
    """A site that is replaced.

    Attributes:
        nodes: the nodes of the captured program, in the order they run.
        replace: the lines put in their place.
    """

    nodes: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True)
class Explained:
    """What one rule did in a model.

    Attributes:
        rule: its name.
        stage: canonical, structure or fuse.
        family: the rule file it is of.
        applied: the sites that are replaced.
        rejected: the sites where it fits and is not applied, with the reason.
        near_miss: the attempt that got farthest where it is not applied: `differs` is the first node that differs,
            `expected` and `found` say in what, `where` is the model's source line, `matched` of `ops` were there. A
            rejected site where there is one, else a place where the pattern stops; null where nothing is near.
        near_misses: every place where the pattern stops, the farthest first.
    """

    rule: str
    stage: str
    family: str
    applied: tuple[Applied, ...]
    rejected: tuple[Miss, ...]
    near_miss: Miss | None
    near_misses: tuple[Miss, ...]


@dataclass(frozen=True)
class Explanation:
    """What a plan does and what it does not.

    Attributes:
        rules: what every rule did, in the order of the rules.
        near_misses: the attempt that got farthest, of each rule that has one.
    """

    rules: tuple[Explained, ...]
    near_misses: tuple[Miss, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, as the schema says."""
        value: dict[str, Any] = _EXPLANATION.dump_python(self, mode="json")
        return value


_EXPLANATION = TypeAdapter(Explanation)


def schema() -> str:
    """Returns the JSON schema of what `fuseconv explain --json` gives, as `docs/explain.schema.json` holds it."""
    return json.dumps(_EXPLANATION.json_schema(), indent=2) + "\n"


def explain(plan: Plan, rules: Sequence[Rule]) -> Explanation:
    """Tells rule by rule what a plan does and what it does not.

    Args:
        plan: the plan, with its misses.
        rules: the rules it was made with.
    """
    steps, misses = _by_rule(plan.steps), _by_rule(plan.misses)
    told = tuple(_explained(rule, steps.get(rule.name, ()), misses.get(rule.name, ())) for rule in rules)
    return Explanation(told, tuple(one.near_miss for one in told if one.near_miss is not None))


def _by_rule(all_of: Sequence[_Of]) -> dict[str, list[_Of]]:
    table: dict[str, list[_Of]] = {}
    for one in all_of:
        table.setdefault(one.rule, []).append(one)
    return table


def _explained(rule: Rule, steps: Sequence[Step], misses: Sequence[Miss]) -> Explained:
    rejected = tuple(miss for miss in misses if miss.refused)
    near = tuple(sorted((miss for miss in misses if not miss.refused), key=_distance))
    return Explained(
        rule=rule.name,
        stage=rule.stage,
        family=rule.family,
        applied=tuple(Applied(step.nodes, step.replace) for step in steps),
        rejected=rejected,
        near_miss=next(iter((*rejected, *near)), None),
        near_misses=near,
    )


def _distance(miss: Miss) -> tuple[float, int]:
    """How far an attempt is from a match: the part of the pattern that was not there, then how many ops were."""
    return 1 - miss.matched / max(miss.ops, 1), -miss.matched


def alike(misses: Sequence[Miss]) -> list[tuple[Miss, int]]:
    """Returns the first of all misses that differ in nothing but which layer they are in, and how many there are."""
    groups: dict[str, list[Miss]] = {}
    for miss in misses:
        groups.setdefault(re.sub(r"_\d+\b|\bs\d+\b", "", miss.reason), []).append(miss)
    return [(group[0], len(group)) for group in groups.values()]

"""Formats the measurements of a conversion as lines: the times of targets, and the matches that were left unfused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseconv.bundle.tuned import Tuned
    from fuseconv.matching.steps import Choice, Plan


def left_alone_lines(found: Iterable[tuple[str, str, Choice]]) -> Iterator[str]:
    """Yields one line per group of unfused matches: those with the same measured times in the same target.

    Args:
        found: for each unfused match, the name of its last node, the name of the target, and the times in this target.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for node, target, choice in found:
        groups.setdefault((target, str(choice)), []).append(node)
    for (target, times), nodes in groups.items():
        where = f"{len(nodes)} times, first at {nodes[0]}" if len(nodes) > 1 else f"at {nodes[0]}"
        yield f"matched, left alone in {target}: {times} ({where})"


def tuned_lines(plan: Plan, tuned: Tuned) -> Iterator[str]:
    """Yields lines for the time of each target, why targets were not compared, and which matches were left unfused."""
    for target in tuned.fastest():
        yield f"{target}: {tuned.speeds[target]}"
    for target, reason in tuned.untimed.items():
        yield f"{target} was not compared with the unfused artifact: {reason}"
    for target, classes in tuned.needed.items():
        yield from (f"{target} cannot be written without {name}: {reason}" for name, reason in classes.items())
    whole = [target for target in tuned.speeds if not any(step.applies(target) for step in plan.applied)]
    yield from (f"every match is left alone in {target}" for target in whole)
    found: dict[str, list[tuple[str, str, Choice]]] = {}
    for step in plan.applied:
        for target, choice in step.left_alone().items():
            if target not in whole:
                found.setdefault(step.rule, []).append((step.nodes[-1], target, choice))
    for rule, of_rule in found.items():
        yield from (f"rule {rule}: {line}" for line in left_alone_lines(of_rule))

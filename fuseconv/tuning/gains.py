"""Reads the measured speed-up of each class of equal matches from the choices recorded on the steps of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fuseconv.matching.steps import Choice, Plan


@dataclass(frozen=True)
class Gain:
    """The measured time of a whole call of a target, with and without a class of matches.

    Attributes:
        rule: the name of the rule that the class's matches belong to.
        target: the name of the target that was timed.
        matches: the number of matches of the class.
        choice: the measured times, and whether the class is applied.
    """

    rule: str
    target: str
    matches: int
    choice: Choice

    @property
    def speedup(self) -> float:
        """The time without the class's replacements divided by the time with them."""
        return self.choice.unfused_us / self.choice.fused_us

    @property
    def interval(self) -> tuple[float, float]:
        """The 99 % confidence interval of the speed-up."""
        noise = self.choice.noise_us / self.choice.fused_us
        return self.speedup - noise, self.speedup + noise

    def to_json(self) -> dict[str, Any]:
        """Returns the gain as JSON-serializable values."""
        low, high = self.interval
        return {
            "rule": self.rule,
            "target": self.target,
            "matches": self.matches,
            "applied": self.choice.applied,
            "fused_us": self.choice.fused_us,
            "unfused_us": self.choice.unfused_us,
            "noise_us": self.choice.noise_us,
            "speedup": round(self.speedup, 4),
            "low": round(low, 4),
            "high": round(high, 4),
        }


def gains(plan: Plan, targets: Collection[str]) -> list[Gain]:
    """Returns the gains of a plan's classes in some targets, sorted by target and then by descending speed-up.

    Steps of the same rule with equal choices count as one class, because classes that were measured together have equal
    times. Choices without a time, which a user wrote into the plan by hand, are left out.
    """
    counts = Counter(
        (step.rule, target, choice)
        for step in plan.applied
        for target, choice in step.choices.items()
        if target in targets and choice.fused_us > 0
    )
    found = [Gain(rule, target, matches, choice) for (rule, target, choice), matches in counts.items()]
    return sorted(found, key=lambda gain: (gain.target, -gain.speedup, gain.rule))

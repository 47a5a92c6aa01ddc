"""What each class of matches gains, read from the choices on the steps of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fuseconv.matching.steps import Choice, Plan


@dataclass(frozen=True)
class Gain:
    """The time of a whole call of a target with and without a class of matches, as it was measured.

    Attributes:
        rule: the rule.
        target: the target.
        matches: the number of matches of the class.
        choice: the times, and whether the class is applied.
    """

    rule: str
    target: str
    matches: int
    choice: Choice

    @property
    def speedup(self) -> float:
        """The time without the class divided by the time with it."""
        return self.choice.unfused_us / self.choice.fused_us

    @property
    def interval(self) -> tuple[float, float]:
        """The interval in which the speed-up lies with 99 % certainty."""
        noise = self.choice.noise_us / self.choice.fused_us
        return self.speedup - noise, self.speedup + noise

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
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
    """Returns what the classes of a plan gain in some targets, by target, and then from much to little.

    Steps of one rule with the same times are one class. Classes that were measured only together have the same times.
    A choice that someone wrote into the plan without a time is left out.
    """
    counts = Counter(
        (step.rule, target, choice)
        for step in plan.applied
        for target, choice in step.choices.items()
        if target in targets and choice.fused_us > 0
    )
    found = [Gain(rule, target, matches, choice) for (rule, target, choice), matches in counts.items()]
    return sorted(found, key=lambda gain: (gain.target, -gain.speedup, gain.rule))

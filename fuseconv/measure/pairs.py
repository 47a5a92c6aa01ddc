"""Decides which of two calls is faster, from the times of interleaved calls.

The calls alternate, so that a drift of the machine affects both times of a pair alike. Each pair yields the logarithm
of the ratio of its times. A sign test decides whether the median of these logarithms differs from zero. The test
assumes no distribution, and a few disturbed pairs do not change its result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 12
"""The minimum number of pairs. With fewer pairs, the measured values are too few for the confidence interval."""

DEVIATIONS = 2.576
"""The number of standard deviations of the sign test that gives a 99 % confidence interval of the median."""

LEAST = 0.005
"""A relative difference below this fraction counts as noise, even if it is statistically significant. Two copies of the
same artifact differ in speed because their memory has different addresses, and no number of pairs averages this out."""


@dataclass(frozen=True)
class Ratio:
    """The time of a challenger divided by the time of the base: the median and its 99 % confidence interval."""

    median: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Whether the challenger is faster by more than the noise: the whole interval is below 1."""
        return self.high < 1

    @property
    def slower(self) -> bool:
        """Whether the challenger is slower by more than the noise: the whole interval is above 1."""
        return self.low > 1

    @property
    def noise(self) -> float:
        """Half the width of the confidence interval."""
        return (self.high - self.low) / 2


def ratio(base: Sequence[float], challenger: Sequence[float]) -> Ratio:
    """Returns the ratio of the times of interleaved calls, computed pair by pair.

    Args:
        base: the times of the base, in any unit.
        challenger: the times of the challenger in the same unit, one for each time of the base.

    Raises:
        ValueError: there are fewer than `FEWEST` pairs.
    """
    return ratio_of_logs([math.log(other / one) for one, other in zip(base, challenger, strict=True)])


def ratio_of_logs(logs: Sequence[float]) -> Ratio:
    """Returns the ratio, given the logarithm of each pair's ratio. A logarithm may be the mean over several calls."""
    if len(logs) < FEWEST:
        raise ValueError(f"{len(logs)} pairs are fewer than {FEWEST}")
    median, found = statistics.median(logs), interval(logs, DEVIATIONS)
    assert found is not None
    low, high = found
    return Ratio(math.exp(median), math.exp(min(low, median - LEAST)), math.exp(max(high, median + LEAST)))


def interval(values: Sequence[float], deviations: float) -> tuple[float, float] | None:
    """Returns a confidence interval of the median by a sign test, which assumes no distribution of the values.

    Args:
        values: independent values, in any order.
        deviations: the number of standard deviations of the sign test: 1.96 for 95 % confidence, 2.576 for 99 %.

    Returns:
        The ends of the interval, which are two of the values. None if there are too few values for this confidence.
    """
    rank = int((len(values) - deviations * math.sqrt(len(values))) / 2)
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank > 0 else None

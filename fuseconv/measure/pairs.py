"""Decides which of two calls is faster, from times that were measured in turn.

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
"""The minimum number of pairs. With fewer pairs, the interval would not lie within the measured values."""

DEVIATIONS = 2.576
"""The confidence in standard deviations of the sign test: the interval contains the true median in 99 % of
measurements."""

LEAST = 0.005
"""A difference below this fraction counts as noise, however certain it is. Even two copies of one artifact differ,
because their memory has different addresses, and no number of pairs averages this out."""


@dataclass(frozen=True)
class Ratio:
    """The time of a challenger divided by the time of the base: the median and its confidence interval."""

    median: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Whether the challenger is faster beyond the noise."""
        return self.high < 1

    @property
    def slower(self) -> bool:
        """Whether the challenger is slower beyond the noise."""
        return self.low > 1

    @property
    def noise(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def ratio(base: Sequence[float], challenger: Sequence[float]) -> Ratio:
    """Compares times that were measured in turn, pair by pair.

    Args:
        base: the times of the base.
        challenger: the times of the challenger, one for each time of the base.
    """
    return ratio_of_logs([math.log(other / one) for one, other in zip(base, challenger, strict=True)])


def ratio_of_logs(logs: Sequence[float]) -> Ratio:
    """Computes the ratio from the logarithm of each pair's ratio, which may be a mean over several calls."""
    if len(logs) < FEWEST:
        raise ValueError(f"{len(logs)} pairs are fewer than {FEWEST}")
    median, found = statistics.median(logs), interval(logs, DEVIATIONS)
    assert found is not None
    low, high = found
    return Ratio(math.exp(median), math.exp(min(low, median - LEAST)), math.exp(max(high, median + LEAST)))


def interval(values: Sequence[float], deviations: float) -> tuple[float, float] | None:
    """Returns a confidence interval of the median, for values from any distribution.

    Args:
        values: independent values.
        deviations: the confidence, in standard deviations of the sign test: 1.96 for 95 %, 2.576 for 99 %.

    Returns:
        The ends of the interval, which are two of the values. None if there are too few values for this confidence.
    """
    rank = int((len(values) - deviations * math.sqrt(len(values))) / 2)
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank > 0 else None

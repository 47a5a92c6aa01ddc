"""Which of two calls is faster, judged from times that were measured in turn.

The calls alternate, so that a drift of the machine affects both times of a pair alike. A pair gives the logarithm of
the ratio of its times. Whether their median differs from zero is decided by a sign test: it assumes no distribution,
and a few disturbed pairs do not change it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 12
"""The smallest number of pairs. With fewer, the interval below would not lie within the measured values."""

DEVIATIONS = 2.576
"""Standard deviations of the sign test: the interval contains the true median in 99 % of measurements."""

LEAST = 0.005
"""A difference below this fraction is noise, however certain: two copies of one artifact differ too, because their
memory has other addresses, and no number of pairs averages that out."""


@dataclass(frozen=True)
class Ratio:
    """The time of a challenger divided by that of the base: the median and an interval that contains it."""

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
        """Half of the width of the interval."""
        return (self.high - self.low) / 2


def ratio(base: Sequence[float], challenger: Sequence[float]) -> Ratio:
    """Compares times that were measured in turn: the first of one with the first of the other, and so on.

    Args:
        base: the times of the base.
        challenger: as many times of the challenger.
    """
    return ratio_of_logs([math.log(other / one) for one, other in zip(base, challenger, strict=True)])


def ratio_of_logs(logs: Sequence[float]) -> Ratio:
    """Compares by the logarithms of the ratios of pairs, of which each may be the mean over several calls."""
    if len(logs) < FEWEST:
        raise ValueError(f"{len(logs)} pairs are fewer than {FEWEST}")
    median, found = statistics.median(logs), interval(logs, DEVIATIONS)
    assert found is not None
    low, high = found
    return Ratio(math.exp(median), math.exp(min(low, median - LEAST)), math.exp(max(high, median + LEAST)))


def interval(values: Sequence[float], deviations: float) -> tuple[float, float] | None:
    """Returns the two of the values between which the median of their distribution lies. It may be any distribution.

    Args:
        values: independent values.
        deviations: the certainty, in standard deviations of the sign test: 1.96 for 95 %, 2.576 for 99 %.

    Returns:
        The smaller and the larger one, or None if there are too few values for this certainty.
    """
    rank = int((len(values) - deviations * math.sqrt(len(values))) / 2)
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[-rank]) if rank > 0 else None

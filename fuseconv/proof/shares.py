"""Tests dropout masks: elements must be dropped independently with a given probability, and anew for each seed.

The tests count independent events of equal probability: dropped elements, disjoint pairs of neighbors that agree, and
elements that agree with themselves under another seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

FALSE_ALARM = 1e-12
"""The probability that one test rejects a correct mask. A match has about ten tests, so that fewer than one correct
match in 1e10 is rejected. The seeds are fixed, so that such a match is always rejected."""

ENOUGH = 256
"""The expected number of dropped or kept elements, whichever are rarer, that a test needs."""

RUNS = 64
"""The maximum number of seeds. At least two seeds are used, so that their masks can be compared."""


def runs(told: Tensor, p: float) -> int:
    """Returns the number of seeds for which a mask is generated.

    Args:
        told: a mask that is true for the elements of which one can tell whether they are dropped.
        p: the dropout probability.
    """
    wanted = ENOUGH / min(p, 1 - p) / max(int(told.sum()), 1)
    return min(max(math.ceil(wanted), 2), RUNS)


def shares(dropped: Tensor, told: Tensor, p: float) -> str:
    """Describes a count that is implausible if elements are dropped independently with probability p, else is empty.

    Args:
        dropped: one mask per seed.
        told: as in `runs`.
        p: the dropout probability.
    """
    told = told.expand(dropped.shape)
    if _is_unlikely(dropped[told], p):
        return f"the result differs in the dropout rate: {_share(dropped[told], p)}"
    both = p * p + (1 - p) * (1 - p)
    for axis, pairs in enumerate(_pairs(dropped, told)):
        if _is_unlikely(pairs, both):
            where = f"neighbours along axis {axis - 1}" if axis else "two seeds"
            return f"the result differs in the dropout mask: of {where}, {_share(pairs, both)} agree"
    return ""


def _pairs(dropped: Tensor, told: Tensor) -> Iterator[Tensor]:
    """Yields, for each axis, whether elements agree with their neighbors along it. The pairs are disjoint."""
    for axis in range(dropped.dim()):
        paired = dropped.shape[axis] // 2 * 2
        rows, known = (one.movedim(axis, 0)[:paired] for one in (dropped, told))
        yield (rows[::2] == rows[1::2])[known[::2] & known[1::2]]


def _share(found: Tensor, p: float) -> str:
    return f"{int(found.sum())} of {found.numel()}, with a probability of {p:.4g} each"


def _is_unlikely(found: Tensor, p: float) -> bool:
    """Returns whether a count of independent events with probability p is less likely than `FALSE_ALARM`.

    The bound holds for any number of events: Hoeffding, "Probability inequalities for sums of bounded random
    variables", J. Am. Stat. Assoc. 58 (1963), theorem 1.
    """
    if not found.numel():
        return False
    share = int(found.sum()) / found.numel()
    parts = ((share, p), (1 - share, 1 - p))
    divergence = sum(one * math.log(one / expected) for one, expected in parts if one)
    return found.numel() * divergence > math.log(2 / FALSE_ALARM)

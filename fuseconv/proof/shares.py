"""Tests dropout masks: elements must be dropped independently with a given probability, and each seed needs a new mask.

The tests count independent events of equal probability: an element is dropped, two neighboring elements agree (both
kept or both dropped), or an element agrees with itself under another seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

FALSE_ALARM = 1e-12
"""The maximum probability that one test rejects a correct mask. A match has about ten tests, so that fewer than one
correct match in 1e10 is rejected. The seeds are fixed, so that such a match is always rejected."""

ENOUGH = 256
"""The expected number of dropped or kept elements, whichever are rarer, that a test requires."""

RUNS = 64
"""The maximum number of seeds. At least two seeds are used, so that their masks can be compared."""


def runs(told: Tensor, p: float) -> int:
    """Returns the number of seeds to test: enough to expect `ENOUGH` rare events, but at least 2 and at most `RUNS`.

    Args:
        told: a bool mask of the elements whose value shows whether they are dropped.
        p: the dropout probability.
    """
    wanted = ENOUGH / min(p, 1 - p) / max(int(told.sum()), 1)
    return min(max(math.ceil(wanted), 2), RUNS)


def shares(dropped: Tensor, told: Tensor, p: float) -> str:
    """Returns a description of the first implausible count, or an empty string if every count is plausible.

    A count is implausible if independent dropout with probability p produces it with a probability below `FALSE_ALARM`.

    Args:
        dropped: a bool tensor of shape [seeds, *shape of the result], true for dropped elements.
        told: a bool mask of the elements whose value shows whether they are dropped. Other elements are ignored.
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
    """Yields one bool tensor per axis: whether the elements of each pair of neighbors are both dropped or both kept.

    Each element is in at most one pair. Axis 0 is the axis of the seeds.
    """
    for axis in range(dropped.dim()):
        paired = dropped.shape[axis] // 2 * 2
        rows, known = (one.movedim(axis, 0)[:paired] for one in (dropped, told))
        yield (rows[::2] == rows[1::2])[known[::2] & known[1::2]]


def _share(found: Tensor, p: float) -> str:
    return f"{int(found.sum())} of {found.numel()}, with a probability of {p:.4g} each"


def _is_unlikely(found: Tensor, p: float) -> bool:
    """Returns whether independent events with probability p give such a count with less than `FALSE_ALARM` probability.

    Returns False if there are no events. The bound holds for any number of events: Hoeffding, "Probability inequalities
    for sums of bounded random variables", J. Am. Stat. Assoc. 58 (1963), theorem 1.
    """
    if not found.numel():
        return False
    share = int(found.sum()) / found.numel()
    parts = ((share, p), (1 - share, 1 - p))
    divergence = sum(one * math.log(one / expected) for one, expected in parts if one)
    return found.numel() * divergence > math.log(2 / FALSE_ALARM)

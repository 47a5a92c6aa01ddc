"""Masks as they are drawn: whether each element is dropped with a probability, by itself, for each seed anew.

What is counted are independent events of one probability: elements that are dropped; pairs of neighbours, no element in
two of them, that agree; an element and itself under the next seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

FALSE_ALARM = 1e-12
"""The most likely that one test of a share finds fault with what is right. A site has about ten, and its seeds are
fixed: fewer than one right site in 1e10 is refused, and that one always."""

ENOUGH = 256
"""How many elements are to be dropped, or kept, whichever is rarer, before the shares are judged."""

RUNS = 64
"""The most seeds that are tried for that; at least two are, to tell them apart."""


def runs(told: Tensor, p: float) -> int:
    """Returns for how many seeds a mask is to be drawn.

    Args:
        told: of which elements it is known whether they are dropped.
        p: the probability that one is.
    """
    wanted = ENOUGH / min(p, 1 - p) / max(int(told.sum()), 1)
    return min(max(math.ceil(wanted), 2), RUNS)


def shares(dropped: Tensor, told: Tensor, p: float) -> str:
    """Says which share is not that of elements dropped with probability p, each by itself.

    Args:
        dropped: a mask for each seed.
        told: of which elements it is known.
        p: the probability.
    """
    told = told.expand(dropped.shape)
    if _is_unlikely(dropped[told], p):
        return f"the result differs in what is dropped: {_share(dropped[told], p)}"
    both = p * p + (1 - p) * (1 - p)
    for axis, pairs in enumerate(_pairs(dropped, told)):
        if _is_unlikely(pairs, both):
            where = f"neighbours along axis {axis - 1}" if axis else "two seeds"
            return f"the result differs in what is dropped together: of {where}, {_share(pairs, both)} agree"
    return ""


def _pairs(dropped: Tensor, told: Tensor) -> Iterator[Tensor]:
    """Yields, for each axis, whether elements agree with the next one; no element is in two pairs."""
    for axis in range(dropped.dim()):
        paired = dropped.shape[axis] // 2 * 2
        rows, known = (one.movedim(axis, 0)[:paired] for one in (dropped, told))
        yield (rows[::2] == rows[1::2])[known[::2] & known[1::2]]


def _share(found: Tensor, p: float) -> str:
    return f"{int(found.sum())} of {found.numel()}, with a probability of {p:.4g} each"


def _is_unlikely(found: Tensor, p: float) -> bool:
    """Whether so many of independent events of probability p happen less often than `FALSE_ALARM`.

    The bound holds for any number of them: Hoeffding, "Probability inequalities for sums of bounded random variables",
    J. Am. Stat. Assoc. 58 (1963), theorem 1.
    """
    if not found.numel():
        return False
    share = int(found.sum()) / found.numel()
    parts = ((share, p), (1 - share, 1 - p))
    divergence = sum(one * math.log(one / expected) for one, expected in parts if one)
    return found.numel() * divergence > math.log(2 / FALSE_ALARM)

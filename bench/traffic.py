"""The traffic that bench/serving.py replays: the sizes of the calls, in order, and how many threads make them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[int, ...]
"""The value of each dynamic dim."""

Ranges = Sequence[range]
"""The values that each dynamic dim may have."""

PATTERNS = ("one", "zipf", "random", "bursts", "threads")
DISTINCT = 100
BURST = 30
IDLE_SECONDS = 0.2
THREADS = 8


@dataclass(frozen=True)
class Traffic:
    """Calls, each of which is awaited by the thread that makes it.

    Attributes:
        sizes: of the calls; with several threads, they take turns in the list.
        threads: how many there are.
        burst: the number of calls after which there is a pause of `IDLE_SECONDS`; 0 for none.
    """

    sizes: tuple[Size, ...]
    threads: int = 1
    burst: int = 0


def outside(ranges: Ranges) -> Size:
    """Returns the size that no traffic has: a process makes one call of it before it is measured.

    No dim is 1, because torch.compile makes a program of its own for that.
    """
    return tuple(values[1] for values in ranges)


def paired(ranges: Ranges, known: Sequence[Size], pairs: int) -> Traffic:
    """Returns calls of random sizes that are not among the known ones, each followed by a call of a known size.

    Fewer pairs if there are not so many sizes. Both calls of a pair are made under the same conditions. The clock of
    some machines changes from one second to the next, so that a later replay tells little about an earlier one.
    """
    draw = random.Random(1)  # noqa: S311 - traffic, not a secret
    unseen = sorted(set(itertools.product(*ranges)) - {*known, outside(ranges)})
    some = draw.sample(unseen, min(pairs, len(unseen)))
    return Traffic(tuple(size for new in some for size in (new, draw.choice(known))))


def traffic(pattern: str, ranges: Ranges, calls: int) -> Traffic:
    """Returns the calls of a pattern, the same every time.

    `one` repeats the size that is most frequent in `zipf`, which has 100 sizes; the k-th of them is called with a
    probability proportional to 1/k. `bursts` and `threads` make the calls of `zipf`, with pauses and from 8 threads. In
    `random` every size of the ranges is as likely as another.
    """
    draw = random.Random(0)  # noqa: S311 - traffic, not a secret
    every = list(itertools.product(*ranges))
    every.remove(outside(ranges))
    ranked = draw.sample(every, min(DISTINCT, len(every)))
    zipf = tuple(draw.choices(ranked, [1 / rank for rank in range(1, len(ranked) + 1)], k=calls))
    return {
        "one": Traffic((ranked[0],) * calls),
        "zipf": Traffic(zipf),
        "random": Traffic(tuple(draw.choices(every, k=calls))),
        "bursts": Traffic(zipf, burst=BURST),
        "threads": Traffic(zipf, threads=THREADS),
    }[pattern]

"""Chooses the sizes at which a captured program is compared because an assumption of torch.export does not hold there.

torch.export assumes that a size which it computes, such as the `n - 1` of `x[:, 1:]`, is neither 0 nor 1. At the few
sizes of the dims where such an assumption does not hold, the program and the artifacts are compared with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fuseconv.contract.inputs import example_sizes
from fuseconv.contract.spec import Contract

Size = TypeVar("Size")


@dataclass(frozen=True)
class Assumption:
    """A guard of torch.export that does not hold at a few sizes of the contract.

    Attributes:
        line: the source line of the model at which torch.export made the guard. Empty if it is unknown.
        dims: the names of the dims that occur in the guard.
        failing: combinations of the sizes of these dims at which the guard does not hold, in ascending order. These are
            the first, the last, and some or all between them.
    """

    line: str
    dims: tuple[str, ...]
    failing: tuple[Mapping[str, int], ...]

    def fails_at(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether `failing` contains these sizes of all dims of the contract."""
        return {name: sizes[name] for name in self.dims} in self.failing


def line_of(assumptions: Sequence[Assumption], sizes: Mapping[str, int]) -> str:
    """Returns the source line of an assumption that does not hold at these sizes, or "" if there is none."""
    return next((one.line for one in assumptions if one.fails_at(sizes)), "")


def all_unusual(assumptions: Sequence[Assumption], contract: Contract) -> list[dict[str, int]]:
    """Returns the combinations at which assumptions do not hold, and those of `_together`.

    The dims that do not occur in an assumption have their example sizes.
    """
    ordinary = example_sizes(contract)
    every = ({**ordinary, **sizes} for one in assumptions for sizes in one.failing)
    return _distinct([*every, *_together(assumptions, contract)])


def chosen_unusual(assumptions: Sequence[Assumption], contract: Contract) -> list[dict[str, int]]:
    """Returns the first and the last combination at which each assumption does not hold, and those of `_together`.

    All artifacts are checked at these sizes.
    """
    ordinary = example_sizes(contract)
    ends = ({**ordinary, **one.failing[at]} for one in assumptions for at in (0, -1))
    return _distinct([*ends, *_together(assumptions, contract)])


def _together(assumptions: Sequence[Assumption], contract: Contract) -> list[dict[str, int]]:
    """Returns two combinations in which every dim with an assumption of its own has a size at which it does not hold.

    In the first, these are the smallest such sizes, and the other dims have their smallest sizes, too. In the second,
    these are the largest such sizes, and the other dims have their example sizes.
    """
    sizes: dict[str, list[int]] = {}
    for one in assumptions:
        if len(one.dims) == 1:
            sizes.setdefault(one.dims[0], []).extend(failing[one.dims[0]] for failing in one.failing)
    if not sizes:
        return []
    smallest = {name: dim.min for name, dim in contract.dims().items()}
    return [
        {**smallest, **{name: min(failing) for name, failing in sizes.items()}},
        {**example_sizes(contract), **{name: max(failing) for name, failing in sizes.items()}},
    ]


def spread(every: Sequence[Size], most: int) -> list[Size]:
    """Returns at most `most` items of a sequence: the first, the last, and others at equal distances."""
    if len(every) <= most:
        return list(every)
    return [every[at * (len(every) - 1) // (most - 1)] for at in range(most)]


def _distinct(found: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    return [sizes for at, sizes in enumerate(found) if sizes not in found[:at]]

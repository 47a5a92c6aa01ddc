"""Finds dims that a model accepts only at one size, as in `x.reshape(4, 8)`, or only if they are equal.

The model has failed at the example sizes. The functions call it at the smallest sizes of each dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, islice

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import example_sizes
from fuseconv.contract.spec import Contract

TRIED = 16
"""The maximum number of sizes of a dim at which the model is called."""


def only_size(contract: Contract, takes: Callable[[Mapping[str, int]], bool]) -> tuple[Dim, int] | None:
    """Returns a dim and the only tried size of it that a model accepts while other dims have their example sizes.

    Args:
        contract: the contract, whose example sizes the model does not accept.
        takes: a function that returns whether the model accepts a combination of sizes.

    Returns:
        None if there is no dim of which exactly one size is accepted.
    """
    sizes = example_sizes(contract)
    for dim in contract.dims().values():
        taken = [size for size in tried(dim) if takes({**sizes, dim.name: size})]
        if len(taken) == 1 and dim.min < dim.max:
            return dim, taken[0]
    return None


def equal_dims(contract: Contract, takes: Callable[[Mapping[str, int]], bool]) -> tuple[Dim, Dim] | None:
    """Returns two dims that must be equal, although the contract gives them different names.

    Args:
        contract: the contract, whose example sizes the model does not accept.
        takes: a function that returns whether the model accepts a combination of sizes.

    Returns:
        None if there are no two dims with which the model runs if they are equal, at two different sizes.
    """
    sizes = example_sizes(contract)
    for first, second in combinations(contract.dims().values(), 2):
        common = [size for size in tried(first) if size > 1 and not second.refusal(size)][:2]
        if len(common) == 2 and all(takes({**sizes, first.name: size, second.name: size}) for size in common):
            return first, second
    return None


def tried(dim: Dim) -> list[int]:
    """Returns the sizes of a dim that are tried: the smallest ones."""
    return list(islice(range(dim.min, dim.max + 1, dim.step), TRIED))

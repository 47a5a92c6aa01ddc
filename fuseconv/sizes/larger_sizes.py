"""Chooses larger sizes for an export that fails at the example sizes.

torch.export makes a size static that is 0 or 1 in the example, as the result of several convolutions with strides may
be for a small image. Larger examples have more than one element there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fuseconv.contract.inputs import LARGEST, example_sizes
from fuseconv.contract.spec import Contract

_FACTORS = (8, 64)
"""The factors by which the example sizes are multiplied."""

MOST_ELEMENTS = 1 << 24
"""The maximum number of elements of all inputs."""


def larger_sizes(contract: Contract, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yields sizes of all dims within their ranges. Those of the dims with these names exceed the example sizes."""
    ordinary, dims = example_sizes(contract), contract.dims()
    before = ordinary
    for factor in _FACTORS:
        larger = {name: min(factor * ordinary[name], LARGEST) + dims[name].step for name in names}
        sizes = {**ordinary, **{name: dims[name].allowed(size) for name, size in larger.items()}}
        elements = sum(math.prod(spec.sizes(sizes)) for spec in contract.inputs)
        if sizes == before or elements > MOST_ELEMENTS:
            return
        yield sizes
        before = sizes

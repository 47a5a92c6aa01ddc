"""Exports max pooling over one axis for any length.

torch.export reads the length of the axis as a number, which makes it static. The same pooling over two axes, of which
the first has the size 1, has no such limit and computes the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

_OVER_TWO: Mapping[str, Callable[..., Any]] = {
    "max_pool1d": torch.ops.aten.max_pool2d.default,
    "max_pool1d_with_indices": torch.ops.aten.max_pool2d_with_indices.default,
}
"""Maps the name of each function of torch over one axis to the op over two axes."""


@contextmanager
def pools_of_any_length() -> Iterator[None]:
    """Within the block, max pooling over one axis of dynamic size is computed as pooling over two axes."""
    before = {name: getattr(torch, name) for name in _OVER_TWO}
    for name, pool in before.items():
        setattr(torch, name, _pooling(pool, _OVER_TWO[name]))
    try:
        yield
    finally:
        for name, pool in before.items():
            setattr(torch, name, pool)


def _pooling(pool: Callable[..., Any], over_two: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls the pooling over one axis, or for a dynamic length the one over two axes."""

    @wraps(pool)
    def pooled(input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - the name in torch
        length: object = input.shape[-1]
        if isinstance(length, torch.SymInt):
            return _over_two(over_two, input, *args, **kwargs)
        return pool(input, *args, **kwargs)

    return pooled


def _over_two(
    pool: Callable[..., Any],
    input: Tensor,  # noqa: A002 - the parameters of torch.max_pool1d
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    def two(value: Any, first: int) -> list[Any]:
        (last,) = value if isinstance(value, list | tuple) else (value,)
        return [first, last]

    strides = two(stride, 1) if stride else two(kernel_size, 1)
    sizes = two(kernel_size, 1), strides, two(padding, 0), two(dilation, 1)
    result = pool(input.unsqueeze(-2), *sizes, ceil_mode)
    return tuple(one.squeeze(-2) for one in result) if isinstance(result, tuple) else result.squeeze(-2)

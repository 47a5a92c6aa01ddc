"""Exports `torch.linspace` for any number of steps.

torch.linspace takes the number of steps as a number, which makes a dynamic size static. It is computed from the
integers up to this size instead. Examples are the grids of coordinates to which an image model adds its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

import torch
from torch import Tensor


@contextmanager
def linear_spaces_of_any_length() -> Iterator[None]:
    """Within the block, `torch.linspace` with a dynamic number of steps is computed by ops that take a size."""
    before = torch.linspace

    @wraps(before)
    def linspace(*args: Any, **options: Any) -> Any:
        return _spaced(before, *args, **options)

    torch.linspace = linspace
    try:
        yield
    finally:
        torch.linspace = before


def _spaced(
    before: Callable[..., Tensor],
    start: Any,
    end: Any,
    steps: Any = None,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    result = dtype or torch.get_default_dtype()
    real = result.is_floating_point and not any(map(_is_complex, (start, end)))
    if not isinstance(steps, torch.SymInt) or not real or options.keys() - {"device"}:
        return before(start, end, steps, dtype=dtype, **options)
    device, count = options.get("device"), cast("int", steps)
    numbers = torch.arange(count, dtype=torch.float64, device=device)
    last = torch.scalar_tensor(count - 1, dtype=torch.float64, device=device).clamp(min=1)
    # As in torch, each half is computed from its own end, so that the last value is exactly `end`.
    first_half = numbers * 2 < last + 1
    step = (end - start) / last
    return torch.where(first_half, start + step * numbers, end - step * (last - numbers)).to(result)


def _is_complex(number: Any) -> bool:
    return number.is_complex() if isinstance(number, Tensor) else isinstance(number, complex)

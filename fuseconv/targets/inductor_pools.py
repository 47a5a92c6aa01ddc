"""Keeps `ceil_mode` of pooling in packages of AOTInductor whose sizes are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def keep_ceil_mode() -> None:
    """Corrects Inductor's output sizes of pooling for the rest of the process.

    Inductor drops `ceil_mode` if it changes nothing at the example sizes, and adds a guard on this. A package checks no
    guards, so at other sizes the last row or column of the result would be missing. (torch 2.11 and 2.13,
    `torch._inductor.lowering.pooling_size`)
    """
    from torch._inductor import lowering
    from torch._inductor.virtualized import V

    original: Callable[..., tuple[Any, bool]] = lowering.pooling_size

    def pooling_size(
        x: Any,
        i: int,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        *,
        dilation: Sequence[int] | None = None,
    ) -> tuple[Any, bool]:
        options = {} if dilation is None else {"dilation": dilation}
        reach = (kernel_size[i] - 1) * (dilation[i] if dilation else 1) + 1
        # Otherwise, the last window may begin in the padding and is then omitted. This depends on the size.
        begins_inside = stride[i] + padding[i] <= reach
        if not (ceil_mode and begins_inside and getattr(x, "free_symbols", None)):
            return original(x, i, kernel_size, stride, padding, ceil_mode, **options)
        floor, ceiled = (
            original(one, i, kernel_size, stride, padding, False, **options)[0] for one in (x, x + stride[i] - 1)
        )
        return ceiled, not V.graph.sizevars.statically_known_equals(floor, ceiled)

    lowering.pooling_size = pooling_size

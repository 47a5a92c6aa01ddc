"""Exports models without assumptions about the memory format of their values.

With each value, torch.export notes its memory format. To find out whether a value is contiguous, it compares sizes, and
assumes that the result is the same for all sizes. An example is a crop of an image, which is contiguous only if it is
the whole image. Nothing depends on the note: ops that depend on the strides of a value compare them by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor

_DESCRIBE = "_extract_tensor_metadata"
"""The function of torch.export that notes the memory format of a value."""


@contextmanager
def without_guards_of_memory_formats() -> Iterator[None]:
    """Within the block, the memory format of a value is noted for the sizes of the example, without a guard."""
    describe = getattr(proxy_tensor, _DESCRIBE)

    def described(result: Any, *args: Any, **options: Any) -> Any:
        environment = result.fake_mode.shape_env if isinstance(result, FakeTensor) else None
        if environment is None:
            return describe(result, *args, **options)
        with environment.suppress_guards():
            return describe(result, *args, **options)

    setattr(proxy_tensor, _DESCRIBE, described)
    try:
        yield
    finally:
        setattr(proxy_tensor, _DESCRIBE, describe)

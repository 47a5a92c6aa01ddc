"""Exports `torch.istft` for any `length`.

torch.istft takes the length of its result as a number, which makes a dynamic length static. torch has the same function
in Python, which takes a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import _refs


@contextmanager
def inverse_stft_of_any_length() -> Iterator[None]:
    """Within the block, `torch.istft` with a dynamic `length` calls torch's own implementation in Python."""
    before = torch.istft

    @wraps(before)
    def istft(*args: Any, **kwargs: Any) -> Any:
        sizes = (*args[2:], *kwargs.values())
        return (_refs.istft if any(isinstance(size, torch.SymInt) for size in sizes) else before)(*args, **kwargs)

    torch.istft = istft
    try:
        yield
    finally:
        torch.istft = before

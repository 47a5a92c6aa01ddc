"""Fake kernels for ops with an activation, which they skip.

A fake kernel runs for each match, and an activation changes no shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseconv.ops.activation import parse_activation


def without_activation(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a fake kernel that calls `reference` without the activation. It only validates the argument `act`."""
    signature = inspect.signature(reference)

    def like(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        parse_activation(given.arguments["act"])
        given.arguments["act"] = "none"
        return reference(*given.args, **given.kwargs)

    return like

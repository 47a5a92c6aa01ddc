"""Builds faster fake kernels for ops with an activation.

A fake kernel runs for each match, so its speed matters. It can omit the activation, because an activation changes
neither the shape nor the dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseconv.ops.activation import parse_activation


def without_activation(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a fake kernel that runs `reference` with the activation "none".

    The fake kernel raises `ValueError` if the argument `act` is invalid.
    """
    signature = inspect.signature(reference)

    def like(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        parse_activation(given.arguments["act"])
        given.arguments["act"] = "none"
        return reference(*given.args, **given.kwargs)

    return like

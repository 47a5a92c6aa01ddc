"""Fake kernels of ops with an activation. A fake kernel runs for each match, and activations change no shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseconv.ops.activation import parse_activation


def without_activation(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that returns a tensor like the result of a reference, whose argument `act` it only checks."""
    signature = inspect.signature(reference)

    def like(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        parse_activation(given.arguments["act"])
        given.arguments["act"] = "none"
        return reference(*given.args, **given.kwargs)

    return like

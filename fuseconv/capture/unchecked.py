"""Exports models that use `torch.distributions`, whose checks of their arguments depend on the values of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributions import Distribution


@contextmanager
def distributions_without_checks() -> Iterator[None]:
    """Within the block, new distributions do not check their arguments unless the model passes `validate_args=True`.

    The check raises an error for invalid values, so that for all others the results are the same without it.
    """
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)

"""The packages that only some commands need: an error names the extra that installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuseconv.errors import UpstreamError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Imports in this context what an extra of the package installs.

    Raises:
        UpstreamError: one of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("fuseconv"):
            raise
        what = f"the package {error.name} is not installed"
        raise UpstreamError(what, where=f"the extra {extra}", fix=f"pip install 'fuseconv[{extra}]'") from error

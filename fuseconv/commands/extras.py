"""Guards imports of packages that only some commands need. If one is missing, the error names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuseconv.errors import UpstreamError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Returns a context in which packages of an extra are imported.

    Raises:
        UpstreamError: a package is not installed. The error names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("fuseconv"):
            raise
        what = f"the package {error.name} is not installed"
        raise UpstreamError(what, where=f"the extra {extra}", fix=f"pip install 'fuseconv[{extra}]'") from error

"""Guards imports of optional packages. If a package is missing, the error names the extra that installs the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuseconv.errors import UpstreamError


@contextmanager
def needs_extra(extra: str, also: str = "") -> Iterator[None]:
    """Returns a context manager for importing the packages that an extra of fuseconv installs.

    Args:
        extra: the name of the extra, as in `pip install 'fuseconv[EXTRA]'`.
        also: text that is appended to the fix in the error, such as another way.

    Raises:
        UpstreamError: a package is not installed. The error names the package and the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("fuseconv"):
            raise
        what = f"the package {error.name} is not installed"
        raise UpstreamError(what, where=f"the extra {extra}", fix=f"pip install 'fuseconv[{extra}]'{also}") from error

"""How a conversion was called, as a manifest records it. Nothing here imports torch."""

from __future__ import annotations

from fuseconv.bundle.sealed_text import Strict


class Invocation(Strict):
    """How a conversion was called.

    Attributes:
        command: the words of the command, with the options that pyproject.toml gave it. Of paths only the last part.
            Options that change nothing in the bundle, such as `-o`, are left out.
        revision: the commit that was checked out in the folder where the command ran. None if Git knows none there.
            Changes that were not committed do not show in it: the source and the rules have their own hashes.
    """

    command: list[str]
    revision: str | None = None

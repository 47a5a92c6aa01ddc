"""How a conversion was invoked, as the manifest records it.

Nothing here imports torch.
"""

from __future__ import annotations

from fuseconv.bundle.sealed_text import Strict


class Invocation(Strict):
    """How a conversion was invoked.

    Attributes:
        command: the words of the command, including the options from pyproject.toml. Paths are reduced to their last
            part. Options that change nothing in the bundle, such as `-o`, are left out.
        revision: the commit that was checked out in the folder where the command ran. None if Git knows no commit
            there. Uncommitted changes do not affect it; the source and the rules have their own hashes.
    """

    command: list[str]
    revision: str | None = None

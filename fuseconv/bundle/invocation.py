"""The record of a conversion's command line in the manifest.

Nothing here imports torch.
"""

from __future__ import annotations

from fuseconv.bundle.sealed_text import Strict


class Invocation(Strict):
    """The command line of a conversion, and the Git commit at which it ran.

    Attributes:
        command: the words of the command, including the options from pyproject.toml. Paths are reduced to their last
            part. Options that change nothing in the bundle, such as `-o`, are left out.
        revision: the commit that was checked out in the folder where the command ran. None if Git finds no commit
            there. It does not show uncommitted changes; the source and the rules have their own hashes.
    """

    command: list[str]
    revision: str | None = None

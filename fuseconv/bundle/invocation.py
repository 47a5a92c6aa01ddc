"""The record of a conversion's command line in the manifest.

Nothing here imports torch.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

from fuseconv.bundle.sealed_text import Strict

_READING = ("--model", "--trust")
"""The options that say how the original is read and that no other record in the bundle replaces."""


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

    def original(self, folder: Path | None = None) -> str | None:
        """Returns the words of a command line that name the original model and say how to read it.

        The bundle knows the inputs and the dtype, so the words are the model and its options `--model` and `--trust`.

        Args:
            folder: a folder in which the model is looked for, such as the folder that contains the bundle. None to
                name the model without a folder.

        Returns:
            The words, quoted for a shell. None if no model was converted, or if a method of a model was.
        """
        if self.command[1:2] != ["convert"] or len(self.command) < 3 or "--method" in self.command:
            return None
        model = self.command[2]
        found = model if folder is None or not (folder / model).exists() else str(folder / model)
        kept = [word for option, value in pairwise(self.command[3:]) if option in _READING for word in (option, value)]
        return shlex.join([found, *kept])

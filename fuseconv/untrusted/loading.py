"""Reads a TorchScript archive for `loads`, in a process of its own. What is wrong with its data is written to stdout.

It imports little: `fuseconv.sources` would take a third longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fuseconv.untrusted.records import short_record


def main(path: str) -> None:
    """Reads an archive. Exceptions of torch are not of interest."""
    said = os.dup(1)
    os.dup2(2, 1)  # what torch prints must not mix with the answer
    script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    str(script.graph)
    str(script.forward.schema)
    try:
        short = short_record(Path(path))
    except Exception as error:  # noqa: BLE001 - torch has read it, and what is not understood here is not vouched for
        short = f"its tensors cannot be listed: {type(error).__name__}: {error}"
    os.write(said, short.encode(errors="replace"))

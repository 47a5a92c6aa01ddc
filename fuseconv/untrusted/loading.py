"""The program that `loads` runs in a separate process: loads a TorchScript archive, and reports damage on stdout.

This module imports few modules, so that the process starts quickly: importing `fuseconv.sources` would take a third
longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fuseconv.untrusted.records import short_record


def main(path: str) -> None:
    """Loads a TorchScript archive, and writes a description of its damage to stdout, or nothing if it is intact.

    Raises any exception of torch, which the caller ignores.
    """
    said = os.dup(1)
    os.dup2(2, 1)  # torch's output must not mix with the report
    script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    str(script.graph)
    str(script.forward.schema)
    try:
        short = short_record(Path(path))
    except Exception as error:  # noqa: BLE001 - torch reads the archive, but it cannot be checked here
        short = f"its tensors cannot be listed: {type(error).__name__}: {error}"
    os.write(said, short.encode(errors="replace"))

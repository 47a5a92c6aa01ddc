"""torch.export: the fused program as a `.pt2` archive."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from fuseconv.program.captured import Program
from fuseconv.targets.artifact import Context, Runner, saved
from fuseconv.targets.own_outputs import own_outputs

NAME = "export"


def unsupported(program: Program) -> str | None:
    """Says why the program cannot be saved: it always can, since it came from torch.export."""
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `export/model.pt2` and returns its path relative to `folder`.

    Raises:
        FileError: the file cannot be written.
    """
    artifact = Path(NAME, "model.pt2")
    with saved(folder / artifact) as file:
        torch.export.save(own_outputs(program).exported, file)
    return artifact


def load(path: Path, device: str) -> Runner:
    """Loads what `write` wrote; the op libraries it calls must be loaded before.

    The contract is checked on every call, so the guards of torch.export, which check the same, are left out.
    """
    with warnings.catch_warnings():
        # torch 2.11 says of weights, which it reads from bytes, that somebody could write to them. Nobody does.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(str(path)).module(check_guards=False)

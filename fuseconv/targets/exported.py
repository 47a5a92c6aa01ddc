"""torch.export: the fused program as a `.pt2` archive."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.targets.spec import Context, Runner, TargetSpec

if TYPE_CHECKING:
    from fuseconv.program.captured import Program

SPEC = TargetSpec(
    "export",
    Path("export", "model.pt2"),
    preference=2,
    python_only="torch.export programs can be loaded only in Python",
)


def check_machine(device: str) -> None:
    """Does nothing: writing needs only torch."""


def unsupported(program: Program) -> str | None:
    """Returns None: every program can be saved, because it came from torch.export."""
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `export/model.pt2` and returns its path relative to `folder`.

    Raises:
        FileError: the file cannot be written.
    """
    import torch

    from fuseconv.targets.artifact import saved
    from fuseconv.targets.own_outputs import own_outputs

    with saved(folder / SPEC.artifact) as file:
        torch.export.save(own_outputs(program).exported, file)
    return SPEC.artifact


def load(path: Path, device: str) -> Runner:
    """Loads the archive that `write` wrote. The op libraries it calls must be loaded before.

    The guards of torch.export are removed, because the contract makes the same checks on every call.
    """
    import torch

    with warnings.catch_warnings():
        # torch 2.11 warns that weights read from bytes are not writable. Nothing writes to them.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(str(path)).module(check_guards=False)

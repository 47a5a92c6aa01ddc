"""The export target: torch.export saves the fused program as a `.pt2` archive."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.targets.spec import Context, Runner, TargetSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fuseconv.program.captured import Program
    from fuseconv.weights.table import Table

SPEC = TargetSpec(
    "export",
    Path("export", "model.pt2"),
    preference=2,
    in_place=True,
    python_only="torch.export programs can be loaded only in Python",
)


_LOADING = threading.Lock()
"""Held while an archive is loaded: torch keeps the state of its reader in a global variable."""


def check_machine(device: str) -> None:
    """Does nothing, because writing this target requires only torch."""


def unsupported(program: Program) -> str | None:
    """Returns None, because torch.export can save every program that it captured."""
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `export/model.pt2` and returns its path relative to `folder`.

    Raises:
        FileError: the file cannot be written.
    """
    from fuseconv.targets.in_place import in_place
    from fuseconv.weights.store import weights_of
    from fuseconv.weights.table import set_table

    exported = in_place(program).exported
    table = None if context.store is None else context.store.put(SPEC.artifact.parent.as_posix(), weights_of(exported))
    set_table(folder / SPEC.artifact, None)
    save(exported, folder / SPEC.artifact, table)
    return SPEC.artifact


def save(exported: ExportedProgram, path: Path, table: Table | None = None, others: Collection[str] = ()) -> None:
    """Writes an archive that contains all weights except those in `table` and `others`.

    The table is written next to the archive. In place of each omitted weight, the archive contains one element, which
    is NaN if the dtype supports NaN, expanded to the shape of the weight.
    `module.load_state_dict(weights, assign=True)` sets the weights. Omitted constants become buffers, because a state
    dict contains no constants.

    Args:
        exported: the program to save.
        path: the path of the archive to write.
        table: the weights that are stored outside the archive. None for an archive that contains all weights; then
            `others` is ignored.
        others: the names of other weights to omit.

    Raises:
        FileError: a file cannot be written.
    """
    import torch

    from fuseconv.program.graph_copy import with_weights
    from fuseconv.targets.artifact import hollow, saved
    from fuseconv.weights.store import like, weights_of
    from fuseconv.weights.table import set_table

    if table is not None:
        tensors = {
            name: tensor for name, tensor in weights_of(exported).items() if name in table.tensors or name in others
        }
        hollows = {name: like(tensor, hollow(tensor)) for name, tensor in tensors.items()}
        exported = with_weights(exported, hollows, kept=exported.constants.keys() & hollows.keys())
        set_table(path, table)
    with saved(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found in the group")  # only one element is needed
        torch.export.save(exported, file)


def load(path: Path, device: str) -> Runner:
    """Loads the archive that `write` wrote.

    The caller must first load the op libraries that the program calls. The guards of torch.export are removed, because
    every call is checked against the contract, which makes the same checks.
    """
    import torch

    from fuseconv.targets.artifact import attach, release
    from fuseconv.weights.table import weights_of_artifact

    with _LOADING, warnings.catch_warnings():
        # torch 2.11 warns that weights read from bytes are not writable. Nothing writes to them.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        module = torch.export.load(str(path)).module(check_guards=False)
    if (weights := weights_of_artifact(path, device)) is not None:
        attach(module, weights, path)

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = module(*inputs)
        return result

    # The module is part of reference cycles, which Python may collect late. Its memory is released when the runner is
    # deleted.
    weakref.finalize(run, release, [*module.parameters(), *module.buffers()]).atexit = False
    return run

"""The targets: the artifact formats that a bundle can contain.

Each target is a module, which is listed in `TARGETS` and defines these names.

- `SPEC`: the properties of the target.
- `check_machine(device)`: raises UnsupportedError or FileError if this machine cannot write the target.
- `unsupported(program) -> reason | None`: returns why the target cannot express the program, or None if no reason is
  known before writing. `write` raises UnsupportedError for reasons that are found later.
- `write(program, folder, context) -> path`: writes the artifact under `folder` and returns its relative path.
- `load(path, device) -> runner`: loads the artifact. A runner expects positional tensors and returns a tuple.

The modules import torch only when needed, because help texts list the targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.targets import aoti, exported, onnx, onnx_plugin, torchscript
from fuseconv.targets.spec import Context, Runner, Target, TargetSpec

if TYPE_CHECKING:
    from fuseconv.weights.store import Adopting

TARGETS: Mapping[str, Target] = {
    target.SPEC.name: target for target in (torchscript, exported, aoti, onnx, onnx_plugin)
}
"""The targets, in the order in which help texts and tables list them."""

PREFERENCE: tuple[str, ...] = tuple(sorted(TARGETS, key=lambda name: TARGETS[name].SPEC.preference))
"""The order of preference: if no target is named, the first of these that the bundle contains is loaded."""


def check_known(names: Iterable[str], option: str = "--target") -> None:
    """Checks that each name is the name of a target.

    `option` is the command line option that contains the names, for the error.

    Raises:
        UsageError: a target does not exist.
    """
    for name in names:
        if name not in TARGETS:
            what, fix = f"unknown target {name}", f"use one of {', '.join(sorted(TARGETS))}, separated by commas"
            raise UsageError(what, where=option, fix=fix)


def beside(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the named targets and all targets whose artifacts are in the same folder as a named target's artifact."""
    folders = {spec_of(name).artifact.parent for name in names}
    return tuple(name for name, target in TARGETS.items() if target.SPEC.artifact.parent in folders)


def move_weights(name: str, artifact: Path, store: Adopting, source: Path) -> None:
    """Updates an artifact that was moved from another bundle, so that it refers to the weights of its new bundle.

    Args:
        name: the name of the target.
        artifact: the path of the artifact in its new bundle.
        store: the weights of the new bundle.
        source: the folder of the old bundle.

    Raises:
        FileError: a file cannot be written.
    """
    if spec_of(name).runtime == "onnxruntime":
        from fuseconv.targets import onnx_weights

        onnx_weights.move(artifact, store, source)
        return
    from fuseconv.weights.table import Table, set_table

    if (table := Table.of(artifact)) is not None:
        set_table(artifact, store.adopt(artifact.parent.name, table, source))


def spec_of(name: str) -> TargetSpec:
    """Returns the properties of a target.

    Raises:
        UnsupportedError: the target is unknown. The bundle may have been written by a newer version of fuseconv.
    """
    if name not in TARGETS:
        raise UnsupportedError(f"unknown target {name}", fix="use the version of fuseconv that wrote the bundle")
    return TARGETS[name].SPEC


__all__ = [
    "PREFERENCE",
    "TARGETS",
    "Context",
    "Runner",
    "Target",
    "TargetSpec",
    "beside",
    "check_known",
    "move_weights",
    "spec_of",
]

"""The targets: one module each, all of one shape. A new target is a module and its name in `TARGETS`.

- `SPEC`: what it is.
- `check_machine(device)`: raises UnsupportedError or FileError where this machine lacks what writing takes.
- `unsupported(program) -> reason | None`: what can be said before writing; `write` raises UnsupportedError otherwise.
- `write(program, folder, context) -> path`: writes the artifact under `folder` and returns its path within.
- `load(path, device) -> runner`: loads it; a runner takes positional tensors and returns a tuple of them.

The modules import torch where they first need it: help lists the targets.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuseconv.errors import UnsupportedError
from fuseconv.targets import aoti, exported, onnx, onnx_plugin, torchscript
from fuseconv.targets.spec import Context, Runner, Target, TargetSpec

TARGETS: Mapping[str, Target] = {
    target.SPEC.name: target for target in (torchscript, exported, aoti, onnx, onnx_plugin)
}
"""In the order in which help and tables list them."""

PREFERENCE: tuple[str, ...] = tuple(sorted(TARGETS, key=lambda name: TARGETS[name].SPEC.preference))
"""The target taken when none is named: the first of these that the bundle has."""


def spec_of(name: str) -> TargetSpec:
    """Returns what a target is.

    Raises:
        UnsupportedError: there is no such target; a bundle may be of a newer fuseconv.
    """
    if name not in TARGETS:
        raise UnsupportedError(f"unknown target {name}", fix="use the version of fuseconv that wrote the bundle")
    return TARGETS[name].SPEC


__all__ = ["PREFERENCE", "TARGETS", "Context", "Runner", "Target", "TargetSpec", "spec_of"]

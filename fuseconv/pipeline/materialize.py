"""Writes a target of a bundle as one file that contains its weights. torch loads the file without fuseconv's loader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from fuseconv.bundle.manifest import check_outside, open_bundle
from fuseconv.errors import FileError, UsageError
from fuseconv.program.graph_copy import with_weights
from fuseconv.runtime.choosing_targets import choose_target
from fuseconv.runtime.model import check_target, load_libraries
from fuseconv.targets import exported, torchscript
from fuseconv.targets.artifact import attach, saved
from fuseconv.targets.script_module import quiet
from fuseconv.weights.store import like
from fuseconv.weights.table import weights_of_artifact

_WRITABLE = (torchscript.SPEC.name, exported.SPEC.name)


def materialize(bundle: str | Path, target: str, output: str | Path) -> None:
    """Writes a target of a bundle as a file that contains its weights.

    Args:
        bundle: the folder of the bundle.
        target: `torchscript` or `export`.
        output: the path of the file to write. It must not be inside the bundle.

    Raises:
        UsageError: the bundle does not exist or does not contain the target, a target of this kind cannot be
            materialized, or the output is inside the bundle.
        RefusedError: the bundle is damaged.
        UnsupportedError: the target was written for another device or a newer torch.
        FileError: the file cannot be written.
    """
    folder, output = Path(bundle).absolute(), Path(output)
    manifest = open_bundle(folder)
    check_outside(output, folder)
    if choose_target(manifest, target, folder) not in _WRITABLE:
        raise UsageError(
            f"the target {target} of a bundle cannot be written as a file that contains the weights",
            where="--target",
            fix=f"use one of {', '.join(_WRITABLE)}, or convert the model with --self-contained {target}",
        )
    check_target(folder, manifest, target)
    load_libraries(folder, manifest, target)
    artifact, device = folder / manifest.targets[target], manifest.contract.device
    weights = {name: tensor.clone() for name, tensor in (weights_of_artifact(artifact, device) or {}).items()}
    if target == torchscript.SPEC.name:
        with quiet():
            module: torch.jit.ScriptModule = torch.jit.load(str(artifact), map_location=device)  # type: ignore[no-untyped-call]
            attach(module, weights, artifact)
            with _replacing(output) as path, saved(path) as file:
                torch.jit.save(module, file)
        return
    program = torch.export.load(artifact)
    changed = {name: like(program.state_dict[name], tensor) for name, tensor in weights.items()}
    with _replacing(output) as path:
        exported.save(with_weights(program, changed), path)


@contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """Yields the path of a temporary file. The file replaces `output` if the `with` block ends without an error."""
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(output)
    except OSError as error:
        raise FileError.unwritable("the file cannot be written", error, str(output)) from error
    finally:
        with suppress(OSError):
            partial.unlink()

"""What the scripts call that reproduce a difference: a module through a target, and a part of an artifact."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fuseconv.blaming.segment import captured
from fuseconv.blaming.through import called, through
from fuseconv.ops.library import PLUGINS, plugin_path
from fuseconv.targets import TARGETS


def through_target(target: str, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns what a target computes for a module that takes tensors and returns a tuple of tensors.

    Raises:
        UnsupportedError: the target cannot express the module.
        UpstreamError: its exporter, compiler or runtime failed.
    """
    names, device = [f"x{at}" for at in range(len(inputs))], inputs[0].device.type
    with torch.no_grad():
        outputs = [f"y{at}" for at in range(len(module(*inputs)))]
    return through(target, captured(module, dict(zip(names, inputs, strict=True)), outputs, device), inputs)


def run_piece(
    target: str, data: torch.Tensor, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Returns what a part of an artifact computes.

    Args:
        target: the target of the artifact.
        data: the bytes of the part, as u8[size].
        weights: what it takes after its inputs.
        inputs: its inputs.

    Raises:
        FuseconvError: it does not load.
    """
    spec, device = TARGETS[target].SPEC, inputs[0].device.type if inputs else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, spec.artifact)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.cpu().numpy().tobytes())
        if spec.plugin:
            (path.parent / "lib").mkdir()
            shutil.copy(plugin_path(device), path.parent / "lib" / PLUGINS[device])
        return called(TARGETS[target].load(path, device), [*inputs, *weights])

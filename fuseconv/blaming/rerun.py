"""Provides the functions that repro scripts call, to export and run a module, or to run a part of an artifact."""

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
    """Exports a module to a target, runs the artifact on the inputs, and returns its outputs.

    Raises:
        UnsupportedError: the target cannot express the module.
        UpstreamError: the exporter, compiler or runtime of the target failed.
    """
    names, device = [f"x{at}" for at in range(len(inputs))], inputs[0].device.type
    with torch.no_grad():
        outputs = [f"y{at}" for at in range(len(module(*inputs)))]
    return through(target, captured(module, dict(zip(names, inputs, strict=True)), outputs, device), inputs)


def run_piece(
    target: str, data: torch.Tensor, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Loads a part of an artifact, runs it, and returns its outputs.

    Args:
        target: the name of the artifact's target.
        data: the content of the part's file, as a uint8 tensor of one dim.
        weights: the tensors that are passed to the part after its inputs.
        inputs: the inputs of the part, in order.

    Raises:
        FuseconvError: the part cannot be loaded.
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

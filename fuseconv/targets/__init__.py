"""The targets: one module each, all of one shape.

- `NAME`: what users call it.
- `write(program, folder, context) -> path`: writes the artifact under `folder` and returns its path within.
- `load(path, device) -> runner`: loads it; a runner takes positional tensors and returns a tuple of them.
- `unsupported(program) -> reason | None`: what can be said before writing; `write` raises UnsupportedError otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuseconv.targets import aoti, exported, onnx, onnx_plugin, torchscript
from fuseconv.targets.artifact import Context, Runner, Target

TARGETS: Mapping[str, Target] = {target.NAME: target for target in (aoti, exported, onnx, onnx_plugin, torchscript)}

__all__ = ["TARGETS", "Context", "Runner", "Target"]

"""fuseconv turns a PyTorch model into a fused, deployable bundle and proves that it computes the same results.

Each name below is imported at its first use, so that `fuseconv --help` does not wait for the import of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fuseconv.version import __version__

if TYPE_CHECKING:
    from fuseconv import errors as errors
    from fuseconv import nn as nn
    from fuseconv import ops as ops
    from fuseconv import ray as ray
    from fuseconv.fusing.backend import dynamo_backend as dynamo_backend
    from fuseconv.fusing.compiled import compiled_graphs as compiled_graphs
    from fuseconv.fusing.fuse import fuse as fuse
    from fuseconv.pipeline.add import add as add
    from fuseconv.pipeline.blame import blame as blame
    from fuseconv.pipeline.convert import convert as convert
    from fuseconv.pipeline.methods import convert_methods as convert_methods
    from fuseconv.pipeline.tactics import tune as tune
    from fuseconv.pipeline.verify import verify as verify
    from fuseconv.runtime.methods import load as load

__all__ = [
    "__version__",
    "add",
    "blame",
    "compiled_graphs",
    "convert",
    "convert_methods",
    "dynamo_backend",
    "errors",
    "fuse",
    "load",
    "nn",
    "ops",
    "ray",
    "tune",
    "verify",
]

_HOMES = {
    "add": "fuseconv.pipeline.add",
    "blame": "fuseconv.pipeline.blame",
    "compiled_graphs": "fuseconv.fusing.compiled",
    "convert": "fuseconv.pipeline.convert",
    "convert_methods": "fuseconv.pipeline.methods",
    "dynamo_backend": "fuseconv.fusing.backend",
    "fuse": "fuseconv.fusing.fuse",
    "load": "fuseconv.runtime.methods",
    "tune": "fuseconv.pipeline.tactics",
    "verify": "fuseconv.pipeline.verify",
}


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"fuseconv.{name}")
    raise AttributeError(f"module 'fuseconv' has no attribute {name!r}")

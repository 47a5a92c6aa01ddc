"""fuseconv turns a PyTorch model into a fused, deployable bundle and proves that it computes the same thing.

The names below are imported when they are first used: `fuseconv --help` must not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseconv import errors as errors
    from fuseconv import nn as nn
    from fuseconv import ops as ops
    from fuseconv.fusing import fuse as fuse
    from fuseconv.pipeline import convert as convert
    from fuseconv.pipeline import verify as verify
    from fuseconv.runtime import load as load

__version__ = "0.1.0"

__all__ = ["__version__", "convert", "errors", "fuse", "load", "nn", "ops", "verify"]

_HOMES = {
    "convert": "fuseconv.pipeline",
    "fuse": "fuseconv.fusing",
    "load": "fuseconv.runtime",
    "verify": "fuseconv.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"fuseconv.{name}")
    raise AttributeError(f"module 'fuseconv' has no attribute {name!r}")

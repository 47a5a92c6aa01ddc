"""The op library: importing this package loads it and makes torch know every op, by `Op.adopt`.

`fuseconv.ops.<op>(...)` calls an op; `OPS` is the one list of them.
"""

from __future__ import annotations

from fuseconv.ops import library
from fuseconv.ops.add_relu import add_relu
from fuseconv.ops.library import library_paths
from fuseconv.ops.op import ACTIVATIONS, NAMESPACE, Op, Sample

OPS = (add_relu,)

library.load()
for _op in OPS:
    _op.adopt()

__all__ = ["ACTIVATIONS", "NAMESPACE", "OPS", "Op", "Sample", "add_relu", "library_paths"]

"""The op library: importing this package loads it and makes torch know every op, by `Op.adopt`.

`fuseconv.ops.<op>(...)` calls an op; `OPS` is the one list of them.
"""

from __future__ import annotations

from fuseconv.ops import library
from fuseconv.ops.activation import ACTIVATIONS
from fuseconv.ops.add_layer_norm import add_layer_norm
from fuseconv.ops.add_relu import add_relu
from fuseconv.ops.bias_act import bias_act
from fuseconv.ops.gelu_dropout import gelu_dropout, gelu_with_dropout
from fuseconv.ops.layer_norm_act import layer_norm_act
from fuseconv.ops.library import library_paths
from fuseconv.ops.linear_act import linear_act
from fuseconv.ops.mean_abs import mean_abs
from fuseconv.ops.mul_add import mul_add
from fuseconv.ops.mul_tanh import mul_tanh
from fuseconv.ops.op import NAMESPACE, Op, Sample
from fuseconv.ops.sum_squared import sum_squared

OPS = (
    add_layer_norm,
    add_relu,
    bias_act,
    gelu_dropout,
    layer_norm_act,
    linear_act,
    mean_abs,
    mul_add,
    mul_tanh,
    sum_squared,
)

library.load()
for _op in OPS:
    _op.adopt()

__all__ = [
    "ACTIVATIONS",
    "NAMESPACE",
    "OPS",
    "Op",
    "Sample",
    "add_layer_norm",
    "add_relu",
    "bias_act",
    "gelu_dropout",
    "gelu_with_dropout",
    "layer_norm_act",
    "library_paths",
    "linear_act",
    "mean_abs",
    "mul_add",
    "mul_tanh",
    "sum_squared",
]

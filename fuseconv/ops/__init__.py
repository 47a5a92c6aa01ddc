"""The op library. Importing this package loads it and registers every op with torch through `Op.adopt`.

`fuseconv.ops.<op>(...)` calls an op. `OPS` lists all ops.
"""

from __future__ import annotations

from fuseconv.ops import library
from fuseconv.ops.activation import ACTIVATIONS
from fuseconv.ops.activation_backward import activation_backward
from fuseconv.ops.add_layer_norm import add_layer_norm
from fuseconv.ops.add_relu import add_relu
from fuseconv.ops.add_rms_norm import add_rms_norm
from fuseconv.ops.attention_score import attention_score
from fuseconv.ops.bias_act import bias_act
from fuseconv.ops.gated_act import gated_act
from fuseconv.ops.gated_act_backward import gated_act_backward
from fuseconv.ops.gelu_dropout import gelu_dropout, gelu_with_dropout
from fuseconv.ops.group_norm_act import group_norm_act
from fuseconv.ops.layer_norm_act import layer_norm_act
from fuseconv.ops.library import library_paths
from fuseconv.ops.linear_act import linear_act
from fuseconv.ops.linear_gated import linear_gated
from fuseconv.ops.mean_abs import mean_abs
from fuseconv.ops.mlp import mlp
from fuseconv.ops.mul_add import mul_add
from fuseconv.ops.mul_tanh import mul_tanh
from fuseconv.ops.norm_backward import norm_backward
from fuseconv.ops.op import NAMESPACE, Op, Sample
from fuseconv.ops.rms_norm import rms_norm
from fuseconv.ops.sum_squared import sum_squared

OPS = (
    activation_backward,
    add_layer_norm,
    add_relu,
    add_rms_norm,
    attention_score,
    bias_act,
    gated_act,
    gated_act_backward,
    gelu_dropout,
    group_norm_act,
    layer_norm_act,
    linear_act,
    linear_gated,
    mean_abs,
    mlp,
    mul_add,
    mul_tanh,
    norm_backward,
    rms_norm,
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
    "activation_backward",
    "add_layer_norm",
    "add_relu",
    "add_rms_norm",
    "attention_score",
    "bias_act",
    "gated_act",
    "gated_act_backward",
    "gelu_dropout",
    "gelu_with_dropout",
    "group_norm_act",
    "layer_norm_act",
    "library_paths",
    "linear_act",
    "linear_gated",
    "mean_abs",
    "mlp",
    "mul_add",
    "mul_tanh",
    "norm_backward",
    "rms_norm",
    "sum_squared",
]

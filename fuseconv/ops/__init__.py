"""The op library. Importing this package loads the compiled kernels and registers every op with torch.

`fuseconv.ops.<name>(...)` calls an op, `help(fuseconv.ops.<name>)` describes the op, and `OPS` contains all ops.
"""

from __future__ import annotations

from operator import attrgetter

from fuseconv.ops import library
from fuseconv.ops.activation import ACTIVATIONS as ACTIVATIONS
from fuseconv.ops.activation_backward import activation_backward as activation_backward
from fuseconv.ops.add_layer_norm import add_layer_norm as add_layer_norm
from fuseconv.ops.add_relu import add_relu as add_relu
from fuseconv.ops.add_rms_norm import add_rms_norm as add_rms_norm
from fuseconv.ops.attention import attention as attention
from fuseconv.ops.attention_score import attention_score as attention_score
from fuseconv.ops.bias_act import bias_act as bias_act
from fuseconv.ops.causal_attention import causal_attention as causal_attention
from fuseconv.ops.conv_act import conv_act as conv_act
from fuseconv.ops.gated_act import gated_act as gated_act
from fuseconv.ops.gated_act_backward import gated_act_backward as gated_act_backward
from fuseconv.ops.gelu_dropout import gelu_dropout as gelu_dropout
from fuseconv.ops.gelu_dropout import gelu_with_dropout as gelu_with_dropout
from fuseconv.ops.group_norm_act import group_norm_act as group_norm_act
from fuseconv.ops.layer_norm_act import layer_norm_act as layer_norm_act
from fuseconv.ops.library import library_paths as library_paths
from fuseconv.ops.linear_act import linear_act as linear_act
from fuseconv.ops.linear_gated import linear_gated as linear_gated
from fuseconv.ops.mean_abs import mean_abs as mean_abs
from fuseconv.ops.mlp import mlp as mlp
from fuseconv.ops.mul_add import mul_add as mul_add
from fuseconv.ops.mul_tanh import mul_tanh as mul_tanh
from fuseconv.ops.norm_backward import norm_backward as norm_backward
from fuseconv.ops.op import NAMESPACE as NAMESPACE
from fuseconv.ops.op import Op as Op
from fuseconv.ops.op import Sample as Sample
from fuseconv.ops.rms_norm import rms_norm as rms_norm
from fuseconv.ops.sum_squared import sum_squared as sum_squared

OPS = tuple(sorted((value for value in globals().values() if isinstance(value, Op)), key=attrgetter("name")))

__all__ = ["ACTIVATIONS", "NAMESPACE", "OPS", "Op", "Sample", "gelu_with_dropout", "library_paths"]
__all__ += [op.name for op in OPS]

library.load()
for _op in OPS:
    _op.adopt()

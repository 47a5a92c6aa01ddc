"""Which convolutions the library has kernels for on CUDA, and AOTInductor therefore does not compile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fuseconv.ops.layout import is_channels_last

FEW_CHANNELS = 4
"""PyTorch computes float32 convolutions of so few channels in float32, not in TF32, if the operands are contiguous."""

SHORTEST = 9
"""The library has no kernel for float32 sums of few channels with fewer products (csrc/kernels/few_channels.cu)."""

SHORTEST_IN_F32 = 64
"""The library has no kernel for sums of float32 products, without TF32, that are shorter (csrc/gemm/tf32x3.cu)."""

WIDEST = 192
"""The library has no kernel for depthwise convolutions with a wider window (csrc/kernels/depthwise_windows.cu)."""

_IN_TF32 = ("none", "relu", "gelu", "silu", "hard_swish", "hard_sigmoid", "relu6", "relu_squared", "leaky_relu")
"""The activations of the library's kernel for float32, which needs a Hopper GPU."""


def is_compiled(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,  # noqa: ARG001  # every kernel adds one
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],  # noqa: ARG001  # what TMA cannot gather, the library leaves to torch
    transposed: bool,
    output_padding: Sequence[int],  # noqa: ARG001  # only of transposed convolutions
    groups: int,
    act: str = "none",
    residual_first: bool = True,  # noqa: ARG001  # every kernel adds it on either side
    tf32: bool = True,
) -> bool:
    """Whether AOTInductor compiles the reference: on a CPU, and on a GPU if the library has no kernel for the call.

    The library would call torch's convolution and then compute the rest in a pass, which the compiler fuses with more.
    """
    if x.device.type != "cuda" or transposed or x.dtype == torch.float64:
        return True
    numbers = (*x.shape[2:], *weight.shape[2:], *stride, groups)
    if all(isinstance(number, int) and number == 1 for number in numbers) and not any(padding):  # a linear layer
        return False
    if not (is_channels_last(x) or is_channels_last(weight)):
        return True
    own = weight.shape[1]  # the channels of a group
    if x.dim() <= 4 and groups == weight.shape[0] > 1 and own == 1:  # depthwise
        return weight.shape[-1] > WIDEST
    if x.dtype == torch.float32 and groups == 1 and own <= FEW_CHANNELS:
        return x.dim() > 4 or weight.shape[0] % 8 != 0 or math.prod(weight.shape[1:]) < SHORTEST
    if x.dtype == torch.float32:
        hopper = not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == 9
        if own % 4 != 0 or not hopper or x.dim() > 4:
            return True
        if not tf32:
            return groups > 1 or math.prod(weight.shape[1:]) < SHORTEST_IN_F32
        grouped = groups == 1 or (residual is None and weight.shape[0] // groups % 2 == 0)
        return weight.shape[0] % 4 != 0 or not grouped or act.partition("(")[0] not in _IN_TF32
    return groups > 1 and own < 4

"""group_norm_act: group norm followed by an activation."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import ACTIVATIONS, FROM_RESULT, activate, activate_backward
from fuseconv.ops.autocast import single
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.layout import channels_last, is_channels_last
from fuseconv.ops.like import without_activation
from fuseconv.ops.norm_backward import norm_backward
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    act: str = "none",
) -> Tensor:
    """act(group_norm(x)).

    Args:
        x: [N, C, ...], with at most 15 dims.
        groups: the number of groups of channels. It must divide C.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: added to the variance.
        act: the name of the activation.

    Returns:
        A tensor with the shape of x. It is channels last if x is, otherwise contiguous.

    Examples:
        >>> fuseconv.ops.group_norm_act(torch.tensor([[[1.0, 3.0], [1.0, 3.0]]]), 2, eps=0.0, act="relu")
        tensor([[[0., 1.],
                 [0., 1.]]])
    """
    if x.shape[1] == 0:  # on CUDA, torch 2.11 raises an error if there are no channels
        return activate(x.contiguous(), act)
    # torch.nn.functional.group_norm cannot be used, because it rejects groups of one element.
    y = activate(torch.group_norm(x.contiguous(), groups, weight, bias, eps), act)
    return channels_last(y) if is_channels_last(x) else y


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the arguments, and the result if it determines act's derivative."""
    act = arguments.act
    return vars(arguments) | {"result": results[0] if act in FROM_RESULT and act != "none" else None}


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """Returns the gradients with respect to x, weight and bias.

    Calls PyTorch's kernel, or differentiable ops if the gradients may be differentiated again.
    """
    # PyTorch's kernel divides by the number of elements, so it cannot be called if x is empty.
    by_kernel = not torch.is_grad_enabled() and kept.x.numel() > 0
    return (_gradients_by_kernel if by_kernel else _gradients_by_ops)(kept, needed, grad)


def _gradients_by_kernel(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    aten = torch.ops.aten
    x, weight = kept.x.contiguous(), kept.weight
    sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    value, mean, factor = aten.native_group_norm(x, weight, kept.bias, *sizes, kept.groups, kept.eps)
    grad = activate_backward(grad, kept.result if kept.act in FROM_RESULT else value, kept.act).contiguous()
    # native_group_norm_backward fails for the gradient of a bias without a weight (torch 2.13).
    wanted = ["x" in needed, "weight" in needed, "bias" in needed and weight is not None]
    arguments = (grad, x, mean, factor, weight, *sizes, kept.groups, wanted)
    gradients = dict(zip(("x", "weight", "bias"), aten.native_group_norm_backward(*arguments), strict=True))
    return gradients if wanted[2] else gradients | {"bias": _channel_sums(grad)}


def _gradients_by_ops(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    x, weight, groups, eps = kept.x, kept.weight, kept.groups, kept.eps
    value = kept.result if kept.act in FROM_RESULT else group_norm_act(x, groups, weight, kept.bias, eps)
    grad = activate_backward(grad, value, kept.act)
    scaled = grad if weight is None else grad * weight.view(-1, *[1] * (x.dim() - 2))
    rows = (x.shape[0] * groups, x.shape[1] // groups * math.prod(x.shape[2:]))
    grad_x, _, _ = norm_backward(scaled.reshape(rows), x.reshape(rows), None, None, eps, True, False)
    return {
        "x": grad_x.view(x.shape),
        "weight": _channel_sums(grad * group_norm_act(x, groups, None, None, eps)) if "weight" in needed else None,
        "bias": _channel_sums(grad) if "bias" in needed else None,
    }


def _channel_sums(x: Tensor) -> Tensor:
    """Returns the sum of [N, C, ...] over all dims but the channels, [C]."""
    return x.sum([0, *range(2, x.dim())])


def _decomposes(x: Tensor, *_: object) -> bool:
    """Whether AOTInductor compiles the reference: not for channels-last images on a GPU.

    Its kernels for them read the elements of a group far apart, and write contiguous results, which the convolution
    that follows must copy.
    """
    return not (x.device.type == "cuda" and is_channels_last(x))


def _misleading(x: Tensor, dims: int) -> Tensor:
    """Changes the elements of the last dims of the first image from which the CPU's kernel guesses the mean."""
    flat = x.flatten(-dims)
    flat[:1, ..., :: flat.shape[-1] // 16] += 100
    return flat.view_as(x)


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    weight, bias = draw(12), draw(12)
    image = draw(2, 12, 4, 8)
    images = draw(2, 12, 4, 6).contiguous(memory_format=torch.channels_last)

    def last(*sizes: int) -> Tensor:
        return channels_last(draw(*sizes))

    others = (12, weight, bias, 1e-5, "none")

    return [
        *(Sample(act, (draw(2, 12, 5, 4, scale=3), 3, weight, bias, 1e-5, act)) for act in ACTIVATIONS),
        *(
            Sample(f"span_{height}x{width}", (draw(2, 12, height, width), 4, weight, bias, 1e-5, "silu"))
            for height, width in ((1, 1), (1, 2), (1, 3), (3, 3), (7, 7), (8, 8), (25, 41))
        ),
        Sample("defaults", (image, 3)),
        Sample("no_weight", (image, 3, None, bias, 1e-5, "relu")),
        Sample("no_bias", (image, 3, weight, None, 1e-5, "gelu")),
        Sample("each_channel", (image, 12, weight, bias, 1e-5, "silu")),
        Sample("one_group", (image, 1, weight, bias, 1e-5, "silu")),
        Sample("each_element", (draw(3, 12), 12, weight, bias, 1e-5, "tanh")),
        Sample("no_dims", (draw(3, 12), 4, weight, bias, 1e-5, "relu")),
        Sample("one_dim", (draw(3, 12, 19), 4, weight, bias, 1e-5, "silu")),
        Sample("three_dims", (draw(2, 12, 3, 4, 5), 4, weight, bias, 1e-5, "gelu_tanh")),
        Sample("no_images", (draw(0, 12, 4), 4, weight, bias, 1e-5, "relu")),
        Sample("no_channels", (draw(2, 0, 4), 4, draw(0), draw(0), 1e-5, "relu")),
        Sample("no_positions", (draw(2, 12, 0), 4, weight, bias, 1e-5, "relu")),
        Sample("many_rows", (draw(301, 12, 9), 4, weight, bias, 1e-5, "sigmoid")),
        Sample("long_rows", (draw(1, 12, 129, 127), 2, weight, bias, 1e-5, "silu")),
        Sample("aligned_long_rows", (draw(1, 12, 128, 64), 2, weight, bias, 1e-5, "silu")),
        Sample("far_from_zero", (image + 100, 3, weight, bias, 1e-5, "relu")),
        Sample("constant", (torch.ones_like(image), 3, weight, bias, 1e-5, "relu")),
        *(
            Sample(f"misleading_{rows}", (_misleading(draw(2, 12, rows, 65), 3), 1, weight, bias, 1e-5, "relu"))
            for rows in (20, 129)  # in one part, and in several
        ),
        *(
            Sample(f"channels_last_misleading_{rows}", (channels_last(_misleading(draw(2, 12, rows, 65), 2)), *others))
            for rows in (20, 129)
        ),
        Sample("channels_last_long_gaps", (last(1, 32, 129, 65)[:, 8:24, :, 1:], 4, draw(16), None, 1e-5, "silu")),
        Sample("long_permuted", (draw.permuted(2, 12, 130, 65), 1, weight, bias, 1e-5, "silu")),
        Sample("permuted", (draw.permuted(4, 12, 6, 5), 4, weight, bias, 1e-5, "silu")),
        *(Sample(f"channels_last_{act}", (images, 2, weight, bias, 1e-5, act)) for act in ("none", "gelu")),
        *(
            Sample(f"channels_last_of_{groups}", (last(3, 24, 9, 5), groups, draw(24), None, 1e-5, "silu"))
            for groups in (1, 8, 24)
        ),
        Sample("channels_last_signal", (last(2, 16, 65), 4, draw(16), draw(16), 1e-5, "relu")),
        Sample("channels_last_volume", (last(1, 16, 3, 5, 7), 4, draw(16), draw(16), 1e-5, "none")),
        Sample("channels_last_odd", (last(2, 15, 5, 7), 3, draw(15), draw(15), 1e-5, "silu")),
        Sample("channels_last_parts", (last(2, 16, 129, 65) + 100, 4, draw(16), draw(16), 1e-5, "silu")),
        Sample("channels_last_slices", (last(1, 2064, 2, 3), 2, None, draw(2064), 1e-5, "gelu")),
        Sample(
            "channels_last_unaligned", (draw.unaligned(2, 4, 5, 16).movedim(-1, 1), 2, draw(16), None, 1e-5, "silu")
        ),
        Sample("channels_last_gaps", (last(2, 24, 9, 5)[:, 8:16, :, 1:], 2, draw(8), draw(8), 1e-5, "silu")),
        Sample("channels_last_slice", (last(2, 24, 9, 5)[:, 8:16], 2, draw(8), draw(8), 1e-5, "silu")),
        Sample("strided", (draw.strided(4, 12, 9), 4, draw.strided(12), draw.strided(12), 1e-5, "gelu_tanh")),
        Sample("padded", (draw.padded(4, 12, 8), 4, weight, bias, 1e-5, "tanh")),
        Sample("unaligned", (draw.unaligned(4, 12, 8), 4, draw.unaligned(12), draw.unaligned(12), 1e-5, "relu")),
        Sample("expanded", (draw(1, 12, 8).expand(3, 12, 8), 4, draw(1).expand(12), bias, 1e-5, "silu")),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(2, 6, 4), draw(6)
    return [
        Sample("groups", (x, 4), matches="groups must divide the 6 channels of x, but is 4"),
        Sample("no_groups", (x, 0), matches="groups must divide the 6 channels of x, but is 0"),
        Sample("rank", (draw(6), 3), matches=r"x must have the shape \[N, C, ...\], of at most 15 dims, but has \[6\]"),
        Sample("dims", (draw(2, 6, *[1] * 14), 3), matches="of at most 15 dims, but has"),
        Sample("weight", (x, 3, draw(4)), matches=r"weight must have one element for each of the 6 channels.*\[4\]"),
        Sample("bias", (x, 3, weight, draw(6, 1)), matches=r"bias must have one element for each of the 6.*\[6, 1\]"),
        Sample("act", (x, 3, None, None, 1e-5, "celu"), matches="unknown activation 'celu'"),
        Sample("dtypes", (x, 3, weight.half()), matches="weight and x must have the same dtype"),
    ]


group_norm_act = Op(
    "group_norm_act",
    reference,
    samples,
    errors,
    Gradient(keep, backward),
    single,
    decomposes=_decomposes,
    like=without_activation(reference),
)

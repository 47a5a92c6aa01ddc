"""conv_act: a convolution, its bias, a residual and an activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fuseconv.ops.activation import ACTIVATIONS, FROM_RESULT, activate, activate_backward
from fuseconv.ops.autocast import lower
from fuseconv.ops.convolution_kernels import FEW_CHANNELS, is_compiled
from fuseconv.ops.gradient import Gradient
from fuseconv.ops.layout import channels_last, is_channels_last
from fuseconv.ops.like import without_activation
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw

LARGEST_WINDOW = 196
"""The largest window with which oneDNN computes channels-last depthwise convolutions in bfloat16, in elements: see
csrc/kernels/convolution.cpp."""


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    act: str = "none",
    residual_first: bool = True,
    tf32: bool = True,  # noqa: ARG001  # only float32 on CUDA has this choice
) -> Tensor:
    """act(convolution(x, weight) + bias + residual), or with the residual added after the activation.

    Args:
        x: [N, C, ...], with one to three spatial dims.
        weight: [O, C / groups, ...], or [C, O / groups, ...] if transposed, with the dtype of x.
        bias: [O], or None for 0.
        residual: a tensor with the shape of the result, or None for 0.
        stride: the stride of the convolution, one number per spatial dim.
        padding: the number of zeros on each side of x, one number per spatial dim. A convolution that is not transposed
            also accepts two numbers per spatial dim: first the zeros before each dim, then the zeros after each dim.
        dilation: the distance between two elements of the kernel, one number per spatial dim.
        transposed: whether the convolution is transposed.
        output_padding: the size added to one side of the result of a transposed convolution, one number per spatial
            dim.
        groups: the number of groups of channels.
        act: the activation.
        residual_first: whether the residual is added before the activation. If False, it is added after.
        tf32: whether float32 convolutions may use TF32 on CUDA, as PyTorch's do by default. If False, the library's
            kernels compute them in float32. PyTorch, which computes those without such a kernel, follows its own
            setting, `torch.backends.cudnn.conv.fp32_precision`.

    Returns:
        A tensor [N, O, ...]. Its channels are innermost in memory if those of x or weight are, otherwise it is
        contiguous.

    Examples:
        >>> x, weight = torch.tensor([[[1.0, -2.0, 3.0]]]), torch.tensor([[[1.0, 1.0]]])
        >>> fuseconv.ops.conv_act(x, weight, None, None, [1], [0], [1], False, [0], 1, "relu")
        tensor([[[0., 1.]]])
    """
    if 0 in weight.shape:  # torch would return a result of another shape
        raise RuntimeError(f"weight must not be empty, but has {list(weight.shape)}")
    last = is_channels_last(x) or is_channels_last(weight)
    x, padding = padded(x, padding, transposed)
    if any(len(numbers) != x.dim() - 2 for numbers in (stride, padding, dilation, output_padding)):
        raise RuntimeError(f"stride, padding, dilation and output_padding must have {x.dim() - 2} numbers each")
    if x.dtype == torch.float32 and groups == 1 and x.shape[1] <= FEW_CHANNELS:
        x, weight = x.contiguous(), weight.contiguous()
    if _needs_contiguous(x, weight, groups):
        x, weight = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (x, weight))
    y = torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if residual is not None and residual_first:
        y = y + residual
    y = activate(y, act)
    if residual is not None and not residual_first:
        y = y + residual
    return channels_last(y) if last else y.contiguous()


def _needs_contiguous(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether oneDNN would never finish generating its code for channels-last operands."""
    depthwise = groups > 1 and weight.shape[1] == 1
    on_cpu = x.device.type == "cpu" and x.dtype == torch.bfloat16
    return on_cpu and depthwise and math.prod(weight.shape[2:]) > LARGEST_WINDOW


def sides(padding: Sequence[int]) -> list[int]:
    """Returns a padding with two numbers per spatial dim, in the order that `torch.nn.functional.pad` expects."""
    half = len(padding) // 2
    return [number for i in reversed(range(half)) for number in (padding[i], padding[i + half])]


def padded(x: Tensor, padding: Sequence[int], transposed: bool) -> tuple[Tensor, Sequence[int]]:
    """Returns the input and a padding with one number per spatial dim, for `torch.convolution`.

    If the two sides of a dim have different paddings, returns the padded input and a padding of 0.
    """
    spatial = x.dim() - 2
    if transposed or len(padding) != 2 * spatial:
        return x, padding
    if padding[:spatial] == padding[spatial:]:
        return x, padding[:spatial]
    return functional.pad(x, sides(padding)), [0] * spatial


def _unfused(a: SimpleNamespace) -> Tensor | None:
    """Computes the result with several ops, or returns None if the gradient can be computed from the fused op.

    The gradient may require an intermediate value that the fused op does not return: the activation's input or, if
    the residual is added last, the activation's result.
    """
    last = a.residual is not None and not a.residual_first
    if a.act == "none" or (a.act in FROM_RESULT and not last):
        return None
    rest = (a.stride, a.padding, a.dilation, a.transposed, a.output_padding, a.groups)
    y = activate(conv_act(a.x, a.weight, a.bias, None if last else a.residual, *rest, tf32=a.tf32), a.act)
    return y + a.residual if last else y


_NOT_KEPT = frozenset(["bias", "residual", "residual_first", "tf32"])


def _keep(a: SimpleNamespace, results: tuple[Tensor, ...]) -> dict[str, Any]:
    kept = {name: value for name, value in vars(a).items() if name not in _NOT_KEPT}
    return kept | {"y": None if a.act == "none" else results[0]}


def _backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> dict[str, Tensor]:
    grad = activate_backward(grad, kept.y, kept.act)
    channels = kept.weight.shape[1] * kept.groups if kept.transposed else kept.weight.shape[0]
    names = ("x", "weight", "bias")
    x, padding = padded(kept.x, kept.padding, kept.transposed)
    gradients = torch.ops.aten.convolution_backward(
        grad,
        x,
        kept.weight,
        [channels],
        kept.stride,
        padding,
        kept.dilation,
        kept.transposed,
        kept.output_padding,
        kept.groups,
        [name in needed for name in names],
    )
    found = {**dict(zip(names, gradients, strict=True)), "residual": grad}
    if "x" in needed and x is not kept.x:
        found["x"] = functional.pad(found["x"], [-number for number in sides(kept.padding)])
    return found


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)

    def sample(
        name: str,
        sizes: Sequence[int],
        kernel: Sequence[int],
        act: str = "relu",
        *,
        channels: int = 6,
        stride: int = 1,
        padding: int | list[int] = 0,
        dilation: int = 1,
        output_padding: int | None = None,
        groups: int = 1,
        bias: bool = True,
        residual: bool | None = None,
        last: str = "",
        tf32: bool = True,
    ) -> Sample:
        rank, transposed = len(kernel), output_padding is not None
        outer = (sizes[1], channels // groups) if transposed else (channels, sizes[1] // groups)
        x, weight = draw(*sizes), draw(*outer, *kernel, scale=0.3)
        x = channels_last(x) if "x" in last else x
        if "g" in last:  # with gaps: some of the channels of a wider image
            x = channels_last(draw(sizes[0], 3 * sizes[1], *sizes[2:]))[:, sizes[1] : 2 * sizes[1]]
        weight = channels_last(weight) if "w" in last else weight
        numbers = (
            [stride] * rank,
            padding if isinstance(padding, list) else [padding] * rank,
            [dilation] * rank,
            transposed,
            [output_padding or 0] * rank,
        )
        shape = reference(x.float().cpu(), weight.float().cpu(), None, None, *numbers, groups).shape
        addend = None if residual is None else draw(*shape)
        if addend is not None and "r" in last:
            addend = channels_last(addend)
        return Sample(
            name,
            (x, weight, draw(channels) if bias else None, addend, *numbers, groups, act),
            {name: False for name, given in (("residual_first", residual), ("tf32", tf32)) if given is False},
        )

    def depthwise(
        kernel: int, stride: int, channels: int, act: str, residual: bool | None, last: str = "xwr"
    ) -> Sample:
        return sample(
            f"depthwise_{kernel}_by_{stride}_of_{channels}_{last}",
            (2, channels, 13, 10),
            (kernel, kernel),
            act,
            channels=channels,
            stride=stride,
            padding=kernel // 2,
            groups=channels,
            residual=residual,
            last=last,
        )

    def window(name: str, sizes: Sequence[int], kernel: Sequence[int], act: str = "none", **more: Any) -> Sample:
        channels = sizes[1]
        return sample(name, sizes, kernel, act, **{"channels": channels, "groups": channels, "last": "xr", **more})

    image, square = (2, 4, 7, 9), (3, 3)
    wide = (2, 16, 6, 5)
    return [
        *(sample(act, image, square, act, padding=1) for act in ACTIVATIONS),
        *(sample(f"{act}_of_sum", image, square, act, residual=True) for act in ("none", "relu", "silu", "mish")),
        *(sample(f"{act}_and_sum", image, square, act, residual=False) for act in ("none", "relu", "gelu", "elu")),
        sample("without_bias", image, square, bias=False),
        sample("one_dim", (2, 4, 11), (3,), "gelu", stride=2),
        sample("one_dim_channels_last", (2, 16, 11), (3,), "silu", channels=24, padding=1, residual=True, last="xwr"),
        sample("one_dim_channels_last_x", (2, 6, 12), (5,), "gelu", channels=16, stride=2, padding=[2, 1], last="x"),
        sample("one_dim_rows", (2, 16, 9), (1,), "silu", channels=24, residual=False, last="xr"),
        sample("one_dim_transposed_channels_last", (2, 8, 5), (4,), "relu", stride=2, output_padding=0, last="x"),
        sample("three_dims", (2, 4, 5, 6, 7), (3, 1, 2), "silu", padding=1),
        sample("strided", image, (3, 2), stride=2, padding=1),
        sample("dilated", image, square, dilation=2, padding=2),
        sample("groups", image, square, "silu", groups=2),
        sample("depthwise", image, square, "relu", channels=4, groups=4, padding=1),
        sample("multiplier", image, square, "relu", channels=8, groups=4, padding=1),
        sample("pointwise", image, (1, 1), "relu", residual=True),
        sample("transposed", image, square, "relu", stride=2, padding=1, output_padding=1),
        sample("transposed_groups", image, square, "gelu", groups=2, output_padding=0, residual=True),
        sample("transposed_one_dim", (2, 4, 5), (4,), "tanh", stride=2, output_padding=0),
        sample("channels_last", image, square, "relu", last="xw", residual=True),
        sample("channels_last_x", image, square, "relu", last="x", padding=1),
        sample("channels_last_weight", image, square, "gelu", last="w"),
        sample("channels_last_pointwise", image, (1, 1), "silu", last="x"),
        sample("channels_last_volume", (2, 4, 5, 6, 7), (3, 3, 3), "relu", last="xw"),
        sample("one_channel", (2, 1, 7, 9), square, "relu", padding=1),
        sample("one_element", (1, 1, 1, 1), (1, 1), "sigmoid", channels=1),
        sample("no_batch", (0, 4, 7, 9), square, "relu"),
        sample("no_batch_channels_last", (0, 4, 7, 9), square, "relu", last="x"),
        sample("transposed_nothing", (0, 4, 7, 0), square, "relu", padding=1, output_padding=0),
        depthwise(3, 1, 16, "silu", None),
        depthwise(3, 2, 24, "relu", True),
        depthwise(3, 1, 24, "silu", True, "gw"),
        sample("gaps", wide, square, "relu", channels=24, padding=1, residual=True, last="gw"),
        sample("gaps_pointwise", wide, (1, 1), "silu", channels=24, residual=True, last="g"),
        sample("gaps_groups", (2, 32, 6, 5), square, "silu", channels=32, padding=1, groups=2, last="gw"),
        sample("gaps_of_odd_channels", (2, 5, 6, 7), square, "relu", padding=[1, 0, 1, 1], last="gw"),
        sample("gaps_one_dim", (2, 16, 11), (3,), "gelu", channels=16, padding=1, last="gw"),
        window("one_dim_depthwise", (2, 6, 40), (31,), "silu", padding=15, residual=True),
        window("one_dim_depthwise_causal", (2, 8, 21), (4,), "silu", padding=[3, 0]),
        window("one_dim_depthwise_strided", (1, 5, 50), (9,), "gelu", stride=4, dilation=3, padding=4),
        window("depthwise_row", (2, 6, 9, 30), (1, 11), padding=5, residual=False),
        window("depthwise_column", (2, 3, 30, 9), (11, 1), "relu", stride=2, padding=[5, 0, 5, 0]),
        window("depthwise_dilated", (2, 66, 20, 23), (7, 7), "gelu", dilation=3, padding=9, last="gw"),
        window("depthwise_of_odd_channels", (2, 33, 12, 11), square, "tanh", stride=2, dilation=2, padding=2),
        window("depthwise_of_large_windows", (1, 4, 35, 33), (31, 31), padding=15),
        depthwise(5, 1, 24, "gelu", False),
        depthwise(5, 2, 16, "none", None),
        depthwise(7, 1, 136, "tanh", True),
        depthwise(7, 2, 8, "silu", False),
        depthwise(3, 1, 40, "leaky_relu(0.1)", None),
        sample("one_dim_padded_after", (2, 4, 11), (3,), "gelu", padding=[0, 2]),
        sample("padded_after", image, square, stride=2, padding=[0, 0, 1, 1], last="x"),
        sample("padded_before", image, square, padding=[2, 1, 0, 0]),
        sample("padded_alike", image, square, padding=[1, 2, 1, 2]),
        sample("dense_padded", wide, square, channels=32, stride=2, padding=[0, 1, 1, 2], residual=True, last="xwr"),
        sample(
            "depthwise_padded", wide, square, "silu", channels=16, stride=2, padding=[0, 1, 1, 0], groups=16, last="xw"
        ),
        sample("three_dims_padded", (2, 4, 5, 6, 7), (3, 1, 2), "silu", padding=[0, 0, 1, 2, 0, 0]),
        sample("dense_slope", wide, square, "leaky_relu(0.1)", channels=32, padding=1, last="xw"),
        sample("dense", wide, square, "relu", channels=32, padding=1, residual=True, last="xwr"),
        sample("dense_and_sum", wide, square, "silu", channels=32, padding=1, residual=False, last="xwr"),
        sample("pixels", (2, 3, 15, 12), (7, 7), "silu", channels=32, stride=2, padding=3, last="xw"),
        sample("pixels_by_1", (2, 2, 8, 9), (3, 2), "relu", channels=16, padding=1, residual=True, last="xwr"),
        sample("pixels_of_one_channel", (2, 1, 4, 4), (4, 4), "relu", channels=16),
        sample("pixels_far_apart", (1, 3, 8, 8), (2, 2), "relu", channels=8, padding=300, dilation=590, last="x"),
        sample(
            "pixels_and_sum", (2, 3, 9, 7), (3, 5), "gelu", channels=72, padding=[0, 1, 2, 3], residual=False, last="xr"
        ),
        sample("pixels_dilated", (2, 4, 9, 19), square, "mish", channels=8, padding=2, dilation=2, last="w"),
        sample("one_dim_pixels", (2, 2, 50), (10,), "silu", channels=16, stride=5, last="x"),
        sample("dense_unaligned", (2, 12, 9, 9), square, "silu", channels=16, padding=1, last="x"),
        sample("rows", wide, (1, 1), "silu", channels=24, last="x"),
        sample("rows_and_sum", wide, (1, 1), "gelu", channels=24, residual=False, last="xr"),
        sample("rows_of_sum", wide, (1, 1), "relu", channels=24, residual=True, last="xr"),
        sample("rows_of_one_position", (3, 16, 1, 1), (1, 1), "relu", channels=8),
        sample("dense_in_f32", wide, square, "relu", channels=32, padding=1, residual=True, last="xwr", tf32=False),
        sample("one_dim_in_f32", (2, 16, 11), (5,), "elu", channels=33, stride=2, padding=[4, 0], last="w", tf32=False),
        sample("rows_in_f32", (2, 64, 6, 5), (1, 1), "silu", channels=24, residual=True, last="xr", tf32=False),
        sample("gaps_in_f32", (2, 40, 7, 9), (3, 2), channels=72, stride=2, dilation=2, last="gw", tf32=False),
        sample("threads", (3, 16, 33, 35), square, "gelu", channels=32, padding=1, residual=True),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    x, weight = draw(2, 4, 7, 9), draw(6, 4, 3, 3)
    ones, zeros = [1, 1], [0, 0]
    rest = (ones, zeros, ones, False, zeros, 1)
    return [
        Sample("scalar", (draw(), weight, None, None, *rest), matches=r"x must have the shape \[N, C, ...\]"),
        Sample("weight_rank", (x, draw(6, 4), None, None, *rest), matches="weight must have as many dims as x, 4"),
        Sample(
            "empty_weight", (draw(2, 0, 7, 9), draw(6, 0, 3, 3), None, None, *rest), matches="weight must not be empty"
        ),
        Sample("channels", (x, draw(6, 5, 3, 3), None, None, *rest), matches="x must have 5 channels"),
        Sample("groups", (x, weight, None, None, *rest[:-1], 4), matches="groups must divide the first dim of weight"),
        Sample("stride", (x, weight, None, None, zeros, *rest[1:]), matches="stride must be at least 1, but is 0"),
        Sample("numbers", (x, weight, None, None, [1], *rest[1:]), matches="stride must have 2 numbers, but has 1"),
        Sample("sides", (x, weight, None, None, ones, [0, 0, 0], *rest[2:]), matches="padding must have 2 numbers"),
        Sample(
            "transposed_sides",
            (x, draw(4, 6, 3, 3), None, None, ones, [0, 0, 1, 1], ones, True, zeros, 1),
            matches="padding must have 2 numbers, but has 4",
        ),
        Sample("bias", (x, weight, draw(4), None, *rest), matches=r"bias must have the shape \[6\], but has \[4\]"),
        Sample("residual", (x, weight, None, x, *rest), matches=r"residual must have .*\[2, 6, 5, 7\].*\[2, 4, 7, 9\]"),
        Sample(
            "empty_dim", (draw(2, 4, 0, 9), weight, None, None, *rest), matches="spatial dim 0 of x must not be empty"
        ),
        Sample(
            "output_padding",
            (x, draw(4, 6, 3, 3), None, None, ones, zeros, ones, True, [1, 1], 1),
            matches="output_padding must be less than the stride or the dilation, but is 1",
        ),
        Sample("small", (draw(2, 4, 2, 9), weight, None, None, *rest), matches="spatial dim 0 of x is too small"),
        Sample("act", (x, weight, None, None, *rest, "ReLU"), matches="unknown activation 'ReLU'"),
        Sample("dtypes", (x, weight.half(), None, None, *rest), matches="weight and x must have the same dtype"),
    ]


conv_act = Op(
    "conv_act",
    reference,
    samples,
    errors,
    Gradient(_keep, _backward, _unfused),
    autocast=lower,
    like=without_activation(reference),
    decomposes=is_compiled,
    onnx_node=False,
)

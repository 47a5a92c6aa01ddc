"""The functions of rules about convolutions. As in predicates.py, each function imports torch itself."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

from fuseconv.graph.proved_sizes import are_row_major, same_size
from fuseconv.rulebook.functions import Constants, rule_function
from fuseconv.rulebook.operands import fake_of
from fuseconv.rulebook.refused import Refused, text_of


@rule_function(tensors=False)
def same_padding(_: Constants, weight: Any, dilation: Any) -> list[int]:
    """The padding per side that keeps the sizes at stride 1, like `'same'`. Both sides must need the same padding."""
    kernel = fake_of(weight).shape[2:]
    steps = list(dilation) * (len(kernel) if len(dilation) == 1 else 1)
    totals = [step * (size - 1) for step, size in zip(steps, kernel, strict=True)]
    if not all(isinstance(total, int) and total % 2 == 0 for total in totals):
        raise Refused("a kernel that is padded by as much on either side", text_of(weight))
    return [total // 2 for total in totals]


@rule_function(settings=True)
def may_use_tf32(_: Constants, x: Any) -> bool:
    """Whether PyTorch computes convolutions of x in TF32, as it does by default. True if x is not f32 on CUDA."""
    import torch

    precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]  # torch adds it at run time
    fake = fake_of(x)
    return not fake.is_cuda or fake.dtype != torch.float32 or precision == "tf32"


@rule_function(tensors=False)
def has_kernel_in_f32(_: Constants, weight: Any, groups: Any) -> None:
    """The Hopper kernel without TF32 supports it: one group, channels a multiple of 4, sums of 64 products or more."""
    from fuseconv.ops.convolution_kernels import SHORTEST_IN_F32

    channels, *kernel = fake_of(weight).shape[1:]
    if groups != 1 or channels % 4 != 0 or math.prod(kernel) * channels < SHORTEST_IN_F32:
        expected = f"one group, a multiple of 4 channels and sums of at least {SHORTEST_IN_F32} products"
        raise Refused(expected, f"{groups} groups and the weight {text_of(weight)}")


@rule_function()
def is_channels_first(_: Constants, *operands: Any) -> None:
    """Each image, or each filter of a weight, is contiguous and not channels last. With one channel, it is both."""
    for operand in operands:
        if fake_of(operand).dim() < 3 or not _has_channels_first(operand):
            raise Refused("a tensor whose channels come before its spatial dims in memory", text_of(operand))


@rule_function()
def is_channels_last(_: Constants, *operands: Any) -> None:
    """Each tensor [N, C, H, W], or [N, C1, C2, H, W] with channels in groups, has its channels innermost in memory."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    for operand in operands:
        fake = fake_of(operand)
        channels = [pair for pair in zip(fake.shape[1:-2], fake.stride()[1:-2], strict=True) if pair[0] != 1]
        innermost = 4 <= fake.dim() <= 5 and all(isinstance(number, int) for pair in channels for number in pair)
        if innermost:
            span = 1 + sum((size - 1) * stride for size, stride in channels)
            image, row, column = fake.stride(0), fake.stride(-2), fake.stride(-1)
            innermost = (
                min((stride for _, stride in channels), default=0) == 1
                and statically_known_true(column >= span)
                and same_size(row, column * fake.shape[-1])
                and statically_known_true(image >= row * fake.shape[-2])
            )
        if not innermost:
            raise Refused("a tensor whose spatial dims come before its channels in memory", text_of(operand))


@rule_function(tensors=False)
def has_channels_last_kernel(_: Constants, x: Any, weight: Any, groups: Any) -> None:
    """A kernel reads x channels last: depthwise or 1x1. A 1x1 kernel in 1-D must have 4 times the channels of x."""
    of_x, of_weight = fake_of(x).shape, fake_of(weight).shape
    kernel, channels = of_weight[2:], of_x[1]
    if groups == 1:
        few = len(kernel) == 2 or (len(kernel) == 1 and of_weight[0] >= 4 * channels)
        supported = few and all(length == 1 for length in kernel)
    else:
        supported = of_weight[1] == 1 and of_weight[0] == groups and len(kernel) <= 2
    if not supported:
        raise Refused("a convolution with a kernel for channels-last images", f"the weight {text_of(weight)}")


@rule_function(tensors=False)
def adds_residual(_: Constants, x: Any, weight: Any, groups: Any) -> None:
    """Not a grouped convolution of dynamic sizes in 16 bits on CUDA, which with a residual needs cuDNN plans."""
    import torch

    fake, own = fake_of(x), fake_of(weight).shape[1]
    is_static = all(isinstance(size, int) for size in fake.shape)
    if fake.is_cuda and fake.dtype in (torch.float16, torch.bfloat16) and groups != 1 and own != 1 and not is_static:
        raise Refused("one group or one channel in each, or static sizes", f"{groups} groups and x {text_of(x)}")


_SAME_IMAGES = frozenset(
    f"aten.{op}"
    for op in (
        "cat.default",
        "chunk.default",
        "contiguous.default",
        "movedim.int",
        "movedim.intlist",
        "reshape.default",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "view.default",
    )
)
"""The ops whose results are parts of images, or images of the channels of several."""

_CONVOLUTIONS = frozenset(["aten.conv2d.default", "aten.convolution.default", "fuseconv.conv_act.default"])


@rule_function()
def reaches_convolution(_: Constants, y: Any) -> None:
    """A convolution reads the images: all of them or, through views, slices and cat, a part of their channels."""
    seen, queue = {y}, [y]
    while queue:
        for user in queue.pop().users:
            if str(user.target) in _CONVOLUTIONS and user.args[0] in seen:
                return
            if user not in seen and (str(user.target) in _SAME_IMAGES or user.target is operator.getitem):
                seen.add(user)
                queue.append(user)
    raise Refused("a convolution among the users", text_of(y))


@rule_function(tensors=False)
def moves_by_its_size(_: Constants, weight: Any, stride: Any) -> None:
    """The stride of a convolution equals its kernel size, so that its windows are patches side by side."""
    if list(stride) != list(fake_of(weight).shape[2:]):
        raise Refused("the stride to equal the kernel size", f"the stride {list(stride)} of {text_of(weight)}")


@rule_function(tensors=False)
def split_kernel(_: Constants, weight: Any, stride: Any) -> list[int]:
    """The sizes of a transposed convolution's weight, each kernel size K as K / stride, stride. A stride exceeds 1."""
    channels, results, *kernel = fake_of(weight).shape
    pairs = list(zip(kernel, stride, strict=False))
    if len(stride) != len(kernel) or all(step == 1 for step in stride) or any(size % step for size, step in pairs):
        raise Refused("strides, not all 1, that divide the kernel", f"the stride {list(stride)} of {text_of(weight)}")
    return [channels, results, *(n for size, step in pairs for n in (size // step, step))]


@rule_function(tensors=False)
def full_padding(_: Constants, weight: Any, stride: Any) -> list[int]:
    """The padding per side, K / stride - 1, with which a convolution has a result wherever its kernel meets x."""
    return [count - 1 for count in split_kernel(_, weight, stride)[2::2]]


@rule_function(tensors=False)
def padding_around(_: Constants, pad: Any, padding: Any, stride: Any) -> list[int]:
    """The padding of a convolution, before each dim and then after, plus a `pad` of aten.pad, which is not negative."""
    count = len(stride)
    before, after = [0] * count, [0] * count
    if len(pad) > 2 * count or not all(isinstance(one, int) and one >= 0 for one in pad):
        raise Refused(f"at most {2 * count} numbers of padding, none negative", str(list(pad)))
    before[count - len(pad) // 2 :], after[count - len(pad) // 2 :] = pad[-2::-2], pad[-1::-2]
    own = list(padding) * (2 if len(padding) == count else 1)
    return [one + other for one, other in zip(before + after, own, strict=True)]


@rule_function(tensors=False)
def slice_end(_: Constants, padding: Any, output_padding: Any) -> int:
    """The end of a slice that leaves out the last padding - output_padding elements. The difference is not negative."""
    if padding < output_padding:
        raise Refused(f"an output_padding of at most {padding}", str(output_padding))
    return output_padding - padding or sys.maxsize


@rule_function(shapes=True)
def has_whole_patches(_: Constants, x: Any, weight: Any) -> None:
    """The sizes of a convolution's kernel divide the spatial sizes of x, for every size."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    sizes, kernel = fake_of(x).shape[2:], fake_of(weight).shape[2:]
    if len(sizes) != len(kernel):
        raise Refused(f"as many dims as {text_of(weight)}", text_of(x))
    for size, length in zip(sizes, kernel, strict=True):
        if not statically_known_true(size % length == 0):
            raise Refused(f"a number that divides {size}", str(length))


@rule_function()
def patch_order(_: Constants, x: Any) -> list[int]:
    """The permutation of x with split spatial dims that puts a patch's elements last, in the order of x's memory."""
    spatial = fake_of(x).dim() - 2
    counts, within = [2 + 2 * i for i in range(spatial)], [3 + 2 * i for i in range(spatial)]
    return [0, *counts, *([1, *within] if _has_channels_first(x) else [*within, 1])]


@rule_function()
def kernel_order(_: Constants, x: Any) -> list[int]:
    """The permutation of a convolution's weight that puts its elements in the order of a patch of x."""
    spatial = range(2, fake_of(x).dim())
    return [0, 1, *spatial] if _has_channels_first(x) else [0, *spatial, 1]


def _has_channels_first(x: Any) -> bool:
    (channels, *rest), (stride, *strides) = fake_of(x).shape[1:], fake_of(x).stride()[1:]
    return are_row_major((channels, *rest), (stride, *strides)) and not are_row_major(
        (*rest, channels), (*strides, stride)
    )

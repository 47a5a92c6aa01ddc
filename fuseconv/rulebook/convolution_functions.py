"""The functions of rules about convolutions. As in predicates.py, each function imports torch itself."""

from __future__ import annotations

import operator
from typing import Any

from fuseconv.graph.proved_sizes import row_major
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


@rule_function()
def may_use_tf32(_: Constants, x: Any) -> None:
    """PyTorch computes convolutions of the tensor in TF32, as it does by default, or it is not f32 on CUDA."""
    import torch

    precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]  # torch adds it at run time
    fake = fake_of(x)
    if fake.is_cuda and fake.dtype == torch.float32 and precision != "tf32":
        raise Refused("torch.backends.cudnn.conv.fp32_precision to be 'tf32'", repr(precision))


@rule_function()
def is_channels_first(_: Constants, *operands: Any) -> None:
    """All dims of each tensor but the first are contiguous, and not channels last. One channel has both formats."""
    for operand in operands:
        if fake_of(operand).dim() < 3 or not _has_channels_first(operand):
            raise Refused("a tensor whose channels come before its spatial dims in memory", text_of(operand))


@rule_function()
def has_both_layouts(_: Constants, *operands: Any) -> None:
    """Each tensor is contiguous and channels last at once, because it has one position or one channel."""
    for operand in operands:
        fake = fake_of(operand)
        if fake.dim() < 3 or not (row_major(fake) and row_major(fake.movedim(1, -1))):
            raise Refused("a tensor with one position or one channel", text_of(operand))


@rule_function()
def has_images_outside(_: Constants, *operands: Any) -> None:
    """The last two dims of each tensor come before its other dims but the first in memory, as in channels last."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    for operand in operands:
        fake = fake_of(operand)
        inner = list(zip(fake.shape[1:-2], fake.stride()[1:-2], strict=True))
        outside = fake.dim() >= 4 and all(isinstance(number, int) for pair in inner for number in pair)
        if outside:
            span = 1 + sum((size - 1) * stride for size, stride in inner)
            row, column = fake.stride(-2), fake.stride(-1)
            dense = statically_known_true(row == column * fake.shape[-1])
            outside = dense and span > 1 and statically_known_true(column >= span)
        if not outside:
            raise Refused("a tensor whose spatial dims come before its channels in memory", text_of(operand))


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
            if str(user.target) in _CONVOLUTIONS:
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
    one = fake_of(x)[:1]
    return row_major(one) and not row_major(one.movedim(1, -1))

"""The functions of rules about convolutions. As in predicates.py, each function imports torch itself."""

from __future__ import annotations

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
    """Each tensor is contiguous and not in the channels-last format. A tensor with one channel has both formats."""
    for operand in operands:
        if fake_of(operand).dim() < 3 or not _has_channels_first(operand):
            raise Refused("a tensor whose channels come before its spatial dims in memory", text_of(operand))


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
    fake = fake_of(x)
    return row_major(fake) and not row_major(fake.movedim(1, -1))

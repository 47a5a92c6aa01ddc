"""The functions that rules for attention may call, and what fuseconv's kernels of attention compute."""

from __future__ import annotations

from typing import Any

from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.rulebook.functions import Constants, rule_function
from fuseconv.rulebook.operands import fake_of
from fuseconv.rulebook.refused import Refused, text_of

FEW = ((64, 128), (144, 32))
"""The most keys, and columns of a key, for which the kernel for few keys is faster than PyTorch's (ADR 45)."""

HOPPER = 9
"""The major number of the compute capability for which the other kernel is written (ADR 53)."""

WIDEST = 128
"""The most columns of a head in the kernel for Hopper."""

FLASH_WIDEST = 256
"""The largest number of columns of a head in PyTorch's Flash Attention."""

ALIGNMENT = 8
"""The number of elements, 16 bytes in f16 and bf16, at multiples of which rows begin, and a head's columns end."""

FEW_QUERIES = 64
"""Fewer queries than this are a part of a tile of the kernel for Hopper, which does not divide the keys."""


def is_hopper() -> bool:
    """Returns whether the current GPU is a Hopper GPU. Without a GPU, the bundle is assumed to be for one."""
    import torch

    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == HOPPER


@rule_function()
def has_attention_kernel(constants: Constants, q: Any, k: Any) -> None:
    """Attention has at most 64 keys of 128 columns or 144 of 32 (ADR 45), or `is_attention_on_hopper` holds."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    keys, width = fake_of(k).shape[-2:]
    if not any(statically_known_true(keys <= most) and statically_known_true(width <= wide) for most, wide in FEW):
        try:
            is_attention_on_hopper(constants, q, k)
        except Refused as refused:
            few = " or ".join(f"at most {most} keys of {wide} columns" for most, wide in FEW)
            raise Refused(f"{few}, or {refused.expected}", refused.found) from refused


@rule_function()
def is_attention_on_hopper(_: Constants, q: Any, k: Any) -> None:
    """The GPU is a Hopper GPU, and attention has static sizes, and at least 64 queries of at most 128 columns."""
    (queries, width), keys = fake_of(q).shape[-2:], fake_of(k).shape[-2]
    if not is_hopper():
        raise Refused("a Hopper GPU", "another one")
    if not all(isinstance(one, int) for one in (queries, width, keys)) or queries < FEW_QUERIES or width > WIDEST:
        raise Refused("at least 64 queries of at most 128 columns, with static sizes", text_of(q))
    for x in (q, k):
        *outer, inner = fake_of(x).stride()
        if not same_sizes([inner, *(stride % ALIGNMENT for stride in outer)], [1, *[0] * len(outer)]):
            raise Refused(
                "dense rows at multiples of 16 bytes", f"strides {tuple(fake_of(x).stride())} of {text_of(x)}"
            )


@rule_function()
def may_share_keys(constants: Constants, q: Any, mask: Any) -> None:
    """Shared keys do not slow attention down: without a mask, on a CPU, and in 16 bits on Hopper (ADR 54)."""
    fake = fake_of(q)
    if mask is None or fake.device.type != "cuda":
        return
    if fake.element_size() != 2:
        raise Refused("f16 or bf16, because PyTorch has no CUDA kernel for shared keys and a mask", text_of(q))
    if all(isinstance(size, int) for size in fake.shape):  # otherwise, see targets/unplanned_attention.py
        is_attention_on_hopper(constants, q, q)


@rule_function(ends=True)
def is_bool_mask(_: Constants, mask: Any) -> None:
    """The mask of attention is a bool tensor, and no longer once a rule has replaced it by numbers."""
    import torch

    if fake_of(mask).dtype != torch.bool:
        raise Refused("a bool mask", text_of(mask))

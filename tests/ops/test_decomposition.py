"""Which calls AOTInductor compiles from the reference instead of calling the op."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from support import ROOT
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fuseconv import ops
from fuseconv.ops.activation import ACTIVATIONS
from fuseconv.ops.layout import is_channels_last

HALF, SINGLE = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The choice depends on the device of the tensors, and for f32 also on the GPU, Hopper if there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode():
        yield


def image(*sizes: int, last: bool = True, dtype: torch.dtype = HALF, device: str = "cuda") -> Tensor:
    """A tensor [N, C, ...], channels last or contiguous."""
    if not last:
        return torch.empty(sizes, dtype=dtype, device=device)
    return torch.empty(sizes[0], *sizes[2:], sizes[1], dtype=dtype, device=device).movedim(-1, 1)


CONVOLUTIONS = {
    "channels last": ((2, 16, 8, 8), (24, 16, 3, 3), 1, {}, False),
    "contiguous": ((2, 16, 8, 8), (24, 16, 3, 3), 1, {"last": False}, True),
    "f32": ((2, 16, 8, 8), (24, 16, 3, 3), 1, {"dtype": SINGLE}, False),
    "f32 of one dim": ((2, 16, 8), (24, 16, 3), 1, {"dtype": SINGLE}, False),
    "f32 contiguous": ((2, 16, 8, 8), (24, 16, 3, 3), 1, {"dtype": SINGLE, "last": False}, True),
    "f32 of four channels": ((2, 4, 8, 8), (24, 4, 3, 3), 1, {"dtype": SINGLE}, False),
    "f32 of three channels": ((2, 3, 8, 8), (24, 3, 3, 3), 1, {"dtype": SINGLE}, False),
    "f32 of three channels in twelve": ((2, 3, 8, 8), (12, 3, 3, 3), 1, {"dtype": SINGLE}, True),
    "f32 of few products": ((2, 2, 8, 8), (24, 2, 2, 2), 1, {"dtype": SINGLE}, True),
    "f32 groups": ((2, 16, 8), (16, 8, 3), 2, {"dtype": SINGLE}, False),
    "f32 groups with odd results": ((2, 16, 8), (12, 4, 3), 4, {"dtype": SINGLE}, True),
    "f32 groups of images": ((2, 16, 8, 8), (16, 8, 3, 3), 2, {"dtype": SINGLE}, False),
    "depthwise": ((2, 16, 8, 8), (16, 1, 3, 3), 16, {}, False),
    "depthwise f32": ((2, 16, 8, 8), (16, 1, 3, 3), 16, {"dtype": SINGLE}, False),
    "depthwise contiguous": ((2, 16, 8, 8), (16, 1, 3, 3), 16, {"dtype": SINGLE, "last": False}, True),
    "depthwise f64": ((2, 16, 8, 8), (16, 1, 3, 3), 16, {"dtype": torch.float64}, True),
    "depthwise of one dim": ((2, 16, 8), (16, 1, 3), 16, {}, False),
    "depthwise with a wide window": ((2, 16, 300), (16, 1, 193), 16, {}, True),
    "depthwise of three dims": ((2, 16, 8, 8, 8), (16, 1, 3, 3, 3), 16, {}, True),
    "single positions": ((2, 16, 1, 1), (24, 16, 1, 1), 1, {"last": False}, False),
    "single positions f32": ((2, 6, 1, 1), (3, 6, 1, 1), 1, {"last": False, "dtype": SINGLE}, False),
    "single positions in groups": ((2, 16, 1, 1), (24, 8, 1, 1), 2, {"last": False}, True),
    "single positions with a window": ((2, 16, 1, 1), (24, 16, 1, 3), 1, {"last": False}, True),
    "groups": ((2, 16, 8), (16, 8, 3), 2, {}, False),
    "groups of two": ((2, 16, 8), (16, 2, 3), 8, {}, True),
    "cpu": ((2, 16, 8, 8), (24, 16, 3, 3), 1, {"device": "cpu", "dtype": SINGLE}, True),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    sizes, kernel, groups, layout, decomposes = CONVOLUTIONS[name]
    x, weight = image(*sizes, **layout), image(*kernel, **layout)  # type: ignore[arg-type]  # a table
    ones, zeros = [1] * (len(sizes) - 2), [0] * (len(sizes) - 2)
    rest = (None, None, ones, zeros, ones, False, zeros, groups)
    assert callable(ops.conv_act.decomposes)
    assert ops.conv_act.decomposes(x, weight, *rest) == decomposes
    if not decomposes:
        assert ops.conv_act.decomposition(x, weight, *rest) is NotImplemented


@pytest.mark.parametrize(("dtype", "decomposes"), [(SINGLE, True), (HALF, False)])
def test_a_gpu_before_hopper_has_no_kernel_for_f32(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, decomposes: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    x, weight = image(2, 16, 8, 8, dtype=dtype), image(24, 16, 3, 3, dtype=dtype)
    rest = (None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert callable(ops.conv_act.decomposes)
    assert ops.conv_act.decomposes(x, weight, *rest) == decomposes


@pytest.mark.parametrize(
    ("sizes", "kernel", "groups", "act", "decomposes"),
    [
        ((2, 16, 8, 8), (24, 16, 3, 3), 1, "elu", False),  # this kernel has all activations
        ((2, 32, 8), (33, 32, 2), 1, "relu", False),
        ((2, 16, 8, 8), (24, 8, 3, 3), 2, "relu", True),
        ((2, 6, 8, 8), (24, 6, 4, 4), 1, "relu", True),  # not aligned
        ((2, 12, 8), (24, 12, 5), 1, "relu", True),  # sums of 60 products
        ((2, 16, 8, 8), (16, 1, 3, 3), 16, "relu", False),
        ((2, 3, 8, 8), (16, 3, 3, 3), 1, "relu", False),
    ],
)
def test_convolutions_without_tf32(
    sizes: tuple[int, ...], kernel: tuple[int, ...], groups: int, act: str, decomposes: bool
) -> None:
    x, weight = image(*sizes, dtype=SINGLE), image(*kernel, dtype=SINGLE)
    ones, zeros = [1] * (len(sizes) - 2), [0] * (len(sizes) - 2)
    rest = (None, None, ones, zeros, ones, False, zeros, groups, act, True, False)
    assert callable(ops.conv_act.decomposes)
    assert ops.conv_act.decomposes(x, weight, *rest) == decomposes


def test_f32_has_the_activations_for_which_the_kernel_is_compiled() -> None:
    table, kernels, host = (
        (ROOT / "csrc" / "gemm" / name).read_text() for name in ("sm90_kernel_table.h", "sm90_kernels.cu", "sm90.cpp")
    )
    compiled = set(re.findall(r"DO\((\w+)\)", table)) - set(re.findall(r"ACTIVATION != Activation::(\w+)", kernels))
    compiled |= set(re.findall(r"a == Activation::(\w+)", host))  # pieces of hard_swish
    assert {"none", "relu", "hard_swish", "leaky_relu"} <= compiled
    x, weight = image(2, 16, 8, 8, dtype=SINGLE), image(24, 16, 3, 3, dtype=SINGLE)
    rest = (None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert callable(ops.conv_act.decomposes)
    acts = {act.partition("(")[0]: act for act in ACTIVATIONS}
    assert {name for name, act in acts.items() if not ops.conv_act.decomposes(x, weight, *rest, act)} == compiled


@pytest.mark.parametrize(
    ("last", "device", "called"), [(True, "cuda", True), (False, "cuda", False), (True, "cpu", False)]
)
def test_group_norms(last: bool, device: str, called: bool) -> None:
    x = image(2, 16, 8, 8, last=last, device=device)
    assert (ops.group_norm_act.decomposition(x, 4) is NotImplemented) == called


@pytest.mark.parametrize(
    ("sizes", "strides", "last"),
    [
        ((2, 8, 5, 7), (280, 1, 56, 8), True),
        ((2, 8, 5, 7), (840, 1, 168, 24), True),  # some channels
        ((2, 8, 5, 3), (280, 1, 56, 8), True),  # some positions
        ((2, 8, 5, 7), (280, 35, 7, 1), False),
        ((2, 8, 5, 7), (0, 1, 56, 8), False),  # expanded
        ((2, 8, 5, 7), (560, 2, 112, 16), False),  # every second channel
        ((2, 8, 5, 7), (280, 1, 8, 40), False),  # transposed images
        ((2, 8, 1, 1), (8, 1, 8, 8), False),  # contiguous too
        ((2, 1, 5, 7), (280, 1, 56, 8), True),
        ((2, 1, 8, 8), (100, 100, 10, 1), False),  # some positions of one contiguous channel
        ((1, 8, 5, 7), (3, 1, 56, 8), True),  # a stride that is never used
        ((2, 8), (1, 2), False),
        ((2, 8, 1, 2, 3, 4), (192, 1, 192, 96, 32, 8), False),
    ],
)
def test_channels_last(sizes: tuple[int, ...], strides: tuple[int, ...], last: bool) -> None:
    assert is_channels_last(torch.empty_strided(sizes, strides)) == last

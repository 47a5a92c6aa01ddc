"""The kernels of depthwise convolutions against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.layout import channels_last

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Case:
    """A depthwise convolution of x [images, channels, *size]; the padding keeps the size at stride 1 by default."""

    images: int
    channels: int
    size: tuple[int, int]
    kernel: int
    stride: int = 1
    padding: tuple[int, int] | None = None
    act: str = "none"
    bias: bool = True
    residual: str = ""

    def __str__(self) -> str:
        size = "x".join(map(str, self.size))
        return f"{self.images}-{self.channels}-{size}-{self.kernel}-{self.stride}-{self.act}-{self.residual or 'plain'}"

    @property
    def numbers(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        """The arguments of torch.convolution after the operands."""
        padding = [self.kernel // 2] * 2 if self.padding is None else list(self.padding)
        return [self.stride] * 2, padding, [1, 1], False, [0, 0], self.channels


CASES = [
    Case(2, 32, (112, 112), 3, act="silu"),
    Case(16, 64, (112, 112), 3, act="silu"),  # several tiles per block, as the next
    Case(16, 192, (56, 56), 7),
    Case(1, 32, (9, 300), 3, act="relu", residual="before"),
    Case(3, 96, (57, 33), 3, 2, act="silu", residual="after"),
    Case(70, 40, (7, 7), 3, act="hard_swish"),
    Case(5, 8, (7, 7), 5, 2, act="gelu"),
    Case(2, 144, (56, 56), 5, 2, act="silu", bias=False),
    Case(3, 24, (14, 14), 5, act="sigmoid", residual="before"),
    Case(2, 96, (56, 56), 7),
    Case(9, 64, (7, 7), 7, act="gelu_tanh", residual="after"),
    Case(2, 16, (31, 64), 7, 2, act="relu6"),
    Case(1, 8, (1, 1), 3),
    Case(1, 8, (1, 129), 5, act="leaky_relu(0.1)"),
    Case(200, 16, (2, 2), 3, act="mish"),
    Case(2, 48, (20, 30), 3, padding=(0, 0), act="elu"),
    Case(2, 48, (12, 10), 7, 2, padding=(5, 6), act="tanh"),
    Case(1, 200, (3, 70), 3, padding=(4, 0)),
    # Channels that do not fill vectors of 16 bytes, as in ShuffleNet.
    Case(4, 58, (28, 28), 3, act="relu", residual="after"),
    Case(2, 10, (33, 57), 5, 2),
    Case(3, 6, (9, 8), 7, act="gelu", residual="before"),
]
ABSOLUTE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])

Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def operands(case: Case, dtype: torch.dtype) -> Operands:
    generator = torch.Generator("cuda").manual_seed(case.channels + case.kernel)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device="cuda", generator=generator) * scale).to(dtype)

    x = channels_last(drawn(case.images, case.channels, *case.size))
    weight = drawn(case.channels, 1, case.kernel, case.kernel, scale=1 / case.kernel)
    z = torch.convolution(x, weight, None, *case.numbers)
    residual = channels_last(drawn(*z.shape)) if case.residual else None
    return x, weight, drawn(case.channels) if case.bias else None, residual


def computed(case: Case, tensors: Operands) -> Tensor:
    arguments: list[Any] = [*tensors, *case.numbers, case.act, case.residual == "before"]
    y: Tensor = ops.conv_act(*arguments)
    return y


def reference(case: Case, tensors: Operands) -> Tensor:
    wide = [None if one is None else one.double() for one in tensors]
    arguments: list[Any] = [*wide, *case.numbers, case.act, case.residual == "before"]
    y: Tensor = ops.conv_act.reference(*arguments)
    return y


@DTYPES
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_depthwise_convolution(case: Case, dtype: torch.dtype) -> None:
    tensors = operands(case, dtype)
    y, expected = computed(case, tensors), reference(case, tensors)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.double(), expected, atol=ABSOLUTE[dtype], rtol=RELATIVE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("case", [case for case in CASES if case.act == "none" and case.channels % 8 == 0], ids=str)
def test_a_value_that_is_not_finite_stays_in_its_channel(case: Case, value: float, dtype: torch.dtype) -> None:
    """0 * inf is NaN: the zeros of a diagonal matrix would carry it to other channels."""
    tensors = operands(case, dtype)
    for channel in (0, case.channels - 3):
        tensors[0][0, channel, case.size[0] // 2, case.size[1] // 2] = value
    tensors[1][case.channels - 2, 0, 0, 0] = value
    y, expected = computed(case, tensors), reference(case, tensors)
    torch.testing.assert_close(y.double(), expected, atol=ABSOLUTE[dtype], rtol=RELATIVE[dtype], equal_nan=True)
    assert expected.isfinite().any()


@pytest.mark.parametrize(
    ("channels", "size", "kernel"), [(32, 3, "depthwise_sm90"), (58, 3, "depthwise_kernel"), (32, 9, "windows_kernel")]
)
def test_which_kernel_runs(channels: int, size: int, kernel: str) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("a kernel is for compute capability 9.0")
    case = Case(2, channels, (28, 28), size)
    tensors = operands(case, torch.float16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        computed(case, tensors)
        torch.cuda.synchronize()
    assert any(kernel in event.name for event in profile.events())


@DTYPES
@pytest.mark.parametrize("channels", [1, 2, 7, 66, 130])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        ((1, 1), (3, 2), (1, 1), (1, 1)),
        ((1, 700), (1, 31), (1, 1), (1, 1)),
        ((3, 41), (2, 17), (1, 3), (1, 1)),
        ((19, 70), (5, 9), (2, 2), (3, 1)),
        ((40, 33), (7, 7), (1, 1), (3, 3)),
        ((30, 65), (3, 3), (2, 4), (4, 6)),
        ((50, 47), (41, 41), (1, 1), (1, 1)),
        ((9, 300), (1, 190), (3, 6), (1, 1)),
    ],
    ids=str,
)
def test_a_window_of_any_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    channels: int,
    dtype: torch.dtype,
) -> None:
    """Some of the channels of wider images, with unlike padding, a residual and an activation."""
    torch.manual_seed(channels)
    scale = (kernel[0] * kernel[1]) ** -0.5
    images = channels_last(torch.randn(3, channels + 2, *size, device="cuda").to(dtype))
    x, weight = images[:, 2:], (torch.randn(channels, 1, *kernel, device="cuda") * scale).to(dtype)
    extents = [step * (length - 1) for step, length in zip(dilation, kernel, strict=True)]
    padding = [extent // 2 for extent in extents] + [extent - extent // 2 for extent in extents]
    numbers: list[Any] = [list(stride), padding, list(dilation), False, [0, 0], channels]
    z = ops.conv_act(x, weight, None, None, *numbers)
    tensors = [x, weight, torch.randn(channels, device="cuda").to(dtype), torch.randn_like(z)]
    arguments: list[Any] = [*tensors, *numbers, "silu"]
    wide: list[Any] = [*[tensor.double() for tensor in tensors], *numbers, "silu"]
    y, expected = ops.conv_act(*arguments), ops.conv_act.reference(*wide)
    torch.testing.assert_close(y.double(), expected, atol=ABSOLUTE[dtype], rtol=RELATIVE[dtype])

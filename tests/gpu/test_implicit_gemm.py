"""The Hopper kernel of linear layers as a convolution, through its plain C interface, against f64.

Needs a Hopper GPU and the library that test_linear_backends.py describes.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.roundings import to_tf32
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(ROOT / "bench"))
from linear_library import ACTIVATIONS, BACKENDS, Choice, Library, Problem, Windows, error

LIBRARY = os.environ.get("FUSECONV_LINEAR_LIBRARY")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(LIBRARY is None, reason="FUSECONV_LINEAR_LIBRARY names no library")]


@dataclass(frozen=True)
class Case:
    """A convolution: x [images, channels, *size] and weight [out, channels, *kernel]; padding is (top, left)."""

    images: int
    channels: int
    size: tuple[int, int]
    out: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    act: str = "none"
    bias: bool = True
    residual: str = ""
    groups: int = 1

    def __str__(self) -> str:
        sizes = ("x".join(map(str, numbers)) for numbers in (self.size, self.kernel, self.stride))
        channels = f"{self.channels}-of-{self.groups}" if self.groups > 1 else str(self.channels)
        return f"{self.images}-{channels}-{'-'.join(sizes)}-{self.out}-{self.act}-{self.residual or 'plain'}"


CASES = [
    Case(2, 64, (14, 14), 64, (3, 3), padding=(1, 1), act="relu"),
    Case(3, 64, (9, 11), 128, (3, 3), padding=(1, 1), act="silu", residual="before"),
    Case(2, 72, (10, 7), 40, (3, 3), (2, 2), (1, 1), act="silu"),
    Case(2, 8, (17, 19), 24, (5, 3), (2, 1), (2, 1), act="gelu", residual="after"),
    Case(5, 136, (6, 5), 200, (1, 1), (2, 2)),
    Case(1, 320, (8, 8), 320, (3, 3), padding=(1, 1), act="silu"),
    Case(4, 16, (20, 12), 64, (3, 3), (1, 1), (2, 4), (2, 4), act="hard_swish", bias=False),
    Case(7, 32, (1, 50), 72, (1, 7), (1, 3), (0, 3), act="leaky_relu"),
    Case(300, 24, (4, 4), 136, (4, 4), act="gelu_tanh"),
    Case(2, 64, (3, 3), 64, (3, 3), padding=(3, 3), act="relu6"),
    Case(1, 8, (8, 8), 8, (8, 8), act="sigmoid"),
    Case(2, 96, (1, 99), 144, (1, 3), padding=(0, 1), act="silu", groups=2),
    Case(3, 64, (1, 70), 64, (1, 5), (1, 2), (0, 2), (1, 3), act="relu", groups=8),
    Case(2, 768, (1, 65), 768, (1, 128), padding=(0, 64), groups=16),
    Case(1, 160, (1, 30), 12, (1, 1), bias=False, groups=2),
    Case(3, 192, (14, 13), 192, (3, 3), padding=(1, 1), act="relu", groups=3),
    Case(5, 96, (17, 30), 48, (3, 5), (2, 2), (1, 2), act="silu", groups=2),
    Case(2, 1088, (7, 7), 1088, (3, 3), padding=(1, 1), groups=17),
    Case(70, 64, (3, 3), 128, (3, 3), padding=(3, 3), act="gelu", groups=8),
    Case(1, 64, (1, 9), 64, (1, 3), (3, 1), (1, 1), groups=2),
    Case(4, 256, (40, 30), 128, (7, 7), (1, 1), (16, 9), (3, 3), bias=False, groups=2),
    Case(2, 64, (13, 9), 91, (3, 3), padding=(1, 1), act="silu"),
    Case(2, 64, (1, 700), 64, (1, 3), padding=(0, 256), dilation=(1, 128), act="relu", residual="after"),
    Case(1, 72, (1, 9000), 40, (1, 2), (1, 3), dilation=(1, 4097)),
    Case(2, 40, (33, 65), 56, (3, 3), (2, 3), (1, 0), act="hard_sigmoid", residual="before"),
]
SHAPES = 7  # of tiles, as sm90.h lists them
PLACES = [(1, 1, 8), (2, 1, 8), (1, 2, 3)]  # cluster rows, cluster columns, strip
ABSOLUTE = {torch.bfloat16: 2e-3, torch.float16: 5e-4}
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10}

Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""x and weight, channels last; bias; residual, channels last."""


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(Path(os.environ["FUSECONV_LINEAR_LIBRARY"]))


def convolved(case: Case, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    z = F.conv2d(x, weight, bias, case.stride, case.padding, case.dilation, case.groups)
    if case.residual == "before":
        assert residual is not None
        return ACTIVATIONS[case.act](z + residual)
    z = ACTIVATIONS[case.act](z)
    return z if residual is None else z + residual


def operands(case: Case, dtype: torch.dtype) -> Operands:
    generator = torch.Generator("cuda").manual_seed(case.channels + case.out)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        values = (torch.randn(shape, device="cuda", generator=generator) * scale).to(dtype)
        return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values

    channels = case.channels // case.groups
    taps = channels * case.kernel[0] * case.kernel[1]
    x = drawn(case.images, case.channels, *case.size)
    weight = drawn(case.out, channels, *case.kernel, scale=taps**-0.5)
    z = F.conv2d(x, weight, None, case.stride, case.padding, case.dilation, case.groups)
    return x, weight, drawn(case.out) if case.bias else None, drawn(*z.shape) if case.residual else None


def problem_of(
    library: Library, case: Case, tensors: Operands, y: Tensor, *, pixel_stride: int | None = None
) -> Problem:
    """The problem whose result is y [images, height, width, out], which is dense."""
    x, weight, bias, residual = tensors
    rows = y.view(-1, case.out)
    if residual is not None:
        residual = residual.permute(0, 2, 3, 1).reshape(-1, case.out)
    matrix = weight.permute(0, 2, 3, 1).reshape(case.out, -1)
    assert matrix.data_ptr() == weight.data_ptr()
    form = "residual first" if case.residual == "before" else "plain"
    problem, _ = library.problem(matrix, matrix, bias, case.act, residual, rows, form=form)
    problem.m, problem.x, problem.tf32 = rows.shape[0], x.data_ptr(), int(x.dtype == torch.float32)
    height, width = case.size
    step = pixel_stride or case.channels
    problem.windows = Windows(
        *(height, width, case.channels // case.groups, *case.kernel, y.shape[1], y.shape[2]),
        *(*case.stride, *case.padding, *case.dilation, case.groups),
        *(height * width * step, width * step, step),
    )
    return problem


def choices(library: Library, shape: int, groups: int = 1) -> list[Choice]:
    """The choices of a tile. Blocks of a cluster with different columns have no groups."""
    places = [place for place in PLACES if groups == 1 or place[1] == 1]
    variants = [
        library.library.fuseconv_linear_sm90_variant(shape, *place, early) for place in places for early in (0, 1)
    ]
    return [Choice(BACKENDS.index("sm90"), variant) for variant in variants]


def wide(tensors: Operands) -> Operands:
    x, weight, bias, residual = (None if t is None else t.double() for t in tensors)
    assert x is not None
    assert weight is not None
    return x, weight, bias, residual


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", range(SHAPES))
def test_a_convolution(library: Library, shape: int, case: Case, dtype: torch.dtype) -> None:
    tensors = operands(case, dtype)
    reference = convolved(case, *wide(tensors)).permute(0, 2, 3, 1)
    separate = error(convolved(case, *tensors).permute(0, 2, 3, 1), reference)
    for choice in choices(library, shape, case.groups):
        frame = torch.full((reference.numel() + 2 * case.out,), float("nan"), dtype=dtype, device="cuda")
        y = frame[case.out : -case.out].view(reference.shape)
        library.run(problem_of(library, case, tensors, y), choice)
        assert error(y, reference) <= 1.005 * separate
        torch.testing.assert_close(y.double(), reference, atol=ABSOLUTE[dtype], rtol=RELATIVE[dtype])
        y.fill_(float("nan"))
        assert frame.isnan().all(), "written outside y"


IN_TF32 = (0, 4, 5, 6)  # the tile shapes that f32 has
OTHERS = {"gelu_tanh": "gelu", "sigmoid": "relu"}  # f32 has no kernel with these activations
LARGEST = torch.finfo(torch.float32).max
TF32_CASES = [
    *(replace(case, act=OTHERS.get(case.act, case.act)) for case in CASES),
    Case(2, 12, (9, 7), 20, (3, 3), padding=(1, 1), act="relu", residual="after"),
    Case(2, 36, (9, 7), 28, (1, 1), (2, 2), act="silu", residual="before"),
    Case(3, 20, (8, 8), 33, (3, 2), padding=(1, 0), act="relu6"),
]


@pytest.mark.parametrize("case", TF32_CASES, ids=str)
@pytest.mark.parametrize("shape", IN_TF32)
def test_a_convolution_in_tf32(library: Library, shape: int, case: Case) -> None:
    """Of factors that are rounded to TF32, the products are exact, and the sums nearly so.

    No factor lies in the middle between two TF32 numbers, which NVIDIA does not say how TMA rounds.
    """
    drawn = operands(case, torch.float32)
    x, weight = ((one.view(torch.int32) | 1).view(torch.float32) for one in drawn[:2] if one is not None)
    bias, residual = drawn[2:]
    tensors = x, weight, bias, residual
    rounded = to_tf32(x), to_tf32(weight), bias, residual
    reference = convolved(case, *wide(rounded)).permute(0, 2, 3, 1)
    for choice in choices(library, shape, case.groups):
        start = case.out + -case.out % 4  # y is aligned
        frame = torch.full((reference.numel() + 2 * start,), float("nan"), device="cuda")
        y = frame[start:-start].view(reference.shape)
        library.run(problem_of(library, case, tensors, y), choice)
        torch.testing.assert_close(y.double(), reference, atol=1e-4, rtol=1e-5)
        y.fill_(float("nan"))
        assert frame.isnan().all(), "written outside y"


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), float("nan"), LARGEST, -LARGEST])
def test_special_values_in_tf32(library: Library, special: float) -> None:
    """One pixel is special: those of the windows with it are as in f32, where the largest number becomes infinite."""
    case = Case(1, 32, (9, 9), 32, (1, 1))
    x, weight, bias, _ = operands(case, torch.float32)
    x[:, 3, 4, 5] = special
    weight[:, 3] = 1.0
    for choice in choices(library, 5):
        y = torch.full((1, 9, 9, 32), 7.0, device="cuda")
        library.run(problem_of(library, case, (x, weight, bias, None), y), choice)
        at = y[0, 4, 5]
        assert at.isnan().all() if special != special else (at.sign() == torch.tensor(special).sign().item()).all()
        y[0, 4, 5] = 0.0
        assert y.isfinite().all()


F32_CASES = [
    case for case in (*CASES, *TF32_CASES[-3:]) if case.groups == 1 and case.channels * math.prod(case.kernel) >= 64
]
IN_F32 = range(3)  # the tile shapes of tf32x3, which computes f32 without TF32


def run_in_f32(library: Library, case: Case, tensors: Operands, y: Tensor, shape: int) -> None:
    problem = problem_of(library, case, tensors, y)
    problem.tf32 = 0
    library.run(problem, Choice(BACKENDS.index("tf32x3"), shape))


@pytest.mark.parametrize("case", F32_CASES, ids=str)
@pytest.mark.parametrize("shape", IN_F32)
def test_a_convolution_in_f32(library: Library, shape: int, case: Case) -> None:
    tensors = operands(case, torch.float32)
    reference = convolved(case, *wide(tensors)).permute(0, 2, 3, 1)
    frame = torch.full((reference.numel() + 2 * case.out,), float("nan"), device="cuda")
    y = frame[case.out : -case.out].view(reference.shape)
    run_in_f32(library, case, tensors, y, shape)
    torch.testing.assert_close(y.double(), reference, atol=4e-6, rtol=1e-6)
    y.fill_(float("nan"))
    assert frame.isnan().all(), "written outside y"


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("shape", IN_F32)
def test_infinity_and_nan_in_f32(library: Library, shape: int, value: float) -> None:
    """Of x, of the weight, and beside the padding."""
    case = Case(2, 40, (9, 7), 72, (3, 3), (2, 1), (1, 1), act="silu")
    x, weight, bias, _ = operands(case, torch.float32)
    x[1, 3, 4, 5], x[0, 39, 0, 0], weight[5, 7, 1, 1] = value, value, value
    tensors = x, weight, bias, None
    reference = convolved(case, *wide(tensors)).permute(0, 2, 3, 1)
    y = torch.zeros(reference.shape, device="cuda")
    run_in_f32(library, case, tensors, y, shape)
    assert not reference.isfinite().all()
    torch.testing.assert_close(y.double(), reference, atol=4e-6, rtol=1e-6, equal_nan=True)


def test_refusals_without_tf32(library: Library) -> None:
    case = Case(1, 64, (9, 9), 64, (3, 3), groups=2)
    y = torch.zeros(1, 7, 7, 64, device="cuda")
    with pytest.raises(RuntimeError, match="the channels are in groups"):
        run_in_f32(library, case, operands(case, torch.float32), y, 0)
    odd = Case(1, 33, (9, 9), 64, (3, 3))
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        run_in_f32(library, odd, operands(odd, torch.float32), y, 0)


def test_refusals_of_f32(library: Library) -> None:
    case = Case(1, 32, (9, 9), 32, (3, 3))
    tensors = operands(case, torch.float32)
    y = convolved(case, *tensors).permute(0, 2, 3, 1).contiguous()
    problem = problem_of(library, case, tensors, y)
    with pytest.raises(RuntimeError, match="no kernel of this tile shape"):
        library.run(problem, choices(library, 1)[0])
    problem.tf32 = 0
    with pytest.raises(RuntimeError, match="where TF32 is allowed"):
        library.run(problem, choices(library, 0)[0])
    tanh = replace(case, act="gelu_tanh")
    with pytest.raises(RuntimeError, match="no kernel with this activation"):
        library.run(problem_of(library, tanh, tensors, y), choices(library, 0)[0])


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_a_step_beyond_the_channels_of_a_position_adds_nothing(library: Library, value: float) -> None:
    """A step of 64 channels passes the end of 8 channels. Zero times the infinity of another position would be NaN."""
    case = Case(1, 8, (4, 4), 8, (3, 3), padding=(1, 1))
    x, weight, bias, _ = operands(case, torch.float16)
    x = x.abs() + 0.125
    weight[:, :, 1, 1] = value
    for choice in choices(library, 5):
        y = torch.zeros(1, 4, 4, 8, dtype=torch.float16, device="cuda")
        library.run(problem_of(library, case, (x, weight, bias, None), y), choice)
        assert (y == value).all()


@pytest.mark.parametrize("height", [1, 3])
def test_a_step_beyond_the_channels_of_a_group_adds_nothing(library: Library, height: int) -> None:
    """A step of 64 channels passes the end of a group of 48. The next group has infinities and NaN."""
    case = Case(2, 96, (height, 99), 96, (height, 3), padding=(height // 2, 1), groups=2)
    x, weight, bias, _ = operands(case, torch.float16)
    x[:, 48::2], x[:, 49::2] = float("inf"), float("nan")
    expected = convolved(case, x, weight, bias, None).permute(0, 2, 3, 1)
    for choice in choices(library, 0, case.groups):
        y = torch.zeros(2, height, 99, 96, dtype=torch.float16, device="cuda")
        library.run(problem_of(library, case, (x, weight, bias, None), y), choice)
        assert y[..., :48].isfinite().all()
        assert y[..., 48:].isnan().all()
        torch.testing.assert_close(y[..., :48], expected[..., :48], atol=1e-2, rtol=1e-2)


def test_channels_of_a_wider_tensor(library: Library) -> None:
    """x is a slice of the channels of another tensor."""
    case = Case(2, 64, (9, 9), 64, (3, 3), padding=(1, 1), act="silu")
    _, weight, bias, _ = operands(case, torch.float16)
    wider = torch.randn(2, 9, 9, 96, dtype=torch.float16, device="cuda")
    tensors = wider[..., 16:80].permute(0, 3, 1, 2), weight, bias, None
    y = torch.full((2, 9, 9, 64), float("nan"), dtype=torch.float16, device="cuda")
    reference = convolved(case, *wide(tensors)).permute(0, 2, 3, 1)
    for choice in choices(library, 0):
        library.run(problem_of(library, case, tensors, y, pixel_stride=96), choice)
        torch.testing.assert_close(y.double(), reference, atol=5e-4, rtol=2**-10)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(1, 12, (9, 9), 64, (3, 3)), "multiples of 16 bytes"),
        (Case(1, 64, (40, 40), 64, (3, 3), (9, 9)), "TMA does not support"),
        (Case(1, 64, (200, 200), 64, (2, 2), dilation=(1, 199)), "TMA does not support"),
        (Case(1, 64, (9, 9), 64, (3, 3), padding=(200, 1)), "TMA does not support"),
        (Case(1, 64, (1, 70000), 8, (1, 2), dilation=(1, 65536)), "TMA does not support"),
        (Case(1, 64, (9, 9), 64, (3, 3), act="tanh"), "no kernel with this activation"),
        (Case(1, 64, (1, 9), 66, (1, 3), groups=2), "odd number of columns"),
        (Case(1, 64, (40, 40), 64, (3, 3), padding=(17, 0), groups=2), "TMA does not support"),
        (Case(1, 64, (40, 40), 64, (3, 3), dilation=(1, 16), groups=2), "TMA does not support"),
        (Case(1, 64, (1, 9), 64, (1, 3), groups=2, residual="before"), "loads no residual"),
        (Case(1, 64, (9, 9), 91, (3, 3), residual="after"), "multiples of 16 bytes"),
    ],
    ids=str,
)
def test_refusals(library: Library, case: Case, reason: str) -> None:
    tensors = operands(case, torch.float16)
    y = convolved(case, *tensors).permute(0, 2, 3, 1).contiguous()
    with pytest.raises(RuntimeError, match=reason):
        library.run(problem_of(library, case, tensors, y), choices(library, 0)[0])

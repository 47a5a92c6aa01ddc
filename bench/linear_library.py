"""The C interface of linear's CUDA backends (csrc/gemm/c_api.cpp), for what an op cannot be asked for.

A call through it names the kernel: one of another architecture, or one that the choice would not take. Memory is
torch's. `bench/ops.py` times what a user gets.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it


def _sixths(z: torch.Tensor) -> torch.Tensor:
    return (z / 6 + 0.5).clamp(0, 1)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    # In f64 by their formulas: PyTorch's CUDA kernels multiply by a sixth that is rounded to f32.
    "hard_swish": lambda z: z * _sixths(z) if z.dtype == torch.float64 else F.hardswish(z),
    "hard_sigmoid": lambda z: _sixths(z) if z.dtype == torch.float64 else F.hardsigmoid(z),
    "relu6": F.relu6,
    "relu_squared": lambda z: F.relu(z).square(),
    "leaky_relu": lambda z: F.leaky_relu(z, 0.1),
    "elu": F.elu,
    "mish": F.mish,
}
PARAMETERS = {"leaky_relu": 0.1, "elu": 1.0}
ELEMENTS = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
BACKENDS = ("cublaslt", "sm90", "cublas", "aten", "sm80", "tf32x3")
PROPOSALS = 16
"""Ranks from this one on are algorithms that cuBLAS proposed for another m."""


class Activation(ctypes.Structure):
    """`fuseconv::Activation`."""

    _fields_ = (("name", ctypes.c_int32), ("parameter", ctypes.c_double))


class Windows(ctypes.Structure):
    """`fuseconv::linear::Windows`, field by field."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("height", "width", "channels", "kernel_height", "kernel_width")),
        *((name, ctypes.c_int32) for name in ("y_height", "y_width", "stride_y", "stride_x", "top", "left")),
        *((name, ctypes.c_int32) for name in ("dilation_y", "dilation_x", "groups")),
        *((name, ctypes.c_int64) for name in ("image_stride", "row_stride", "pixel_stride")),
    )


class Problem(ctypes.Structure):
    """`fuseconv::linear::Problem`, field by field."""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("activation", Activation),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("weight_stride", ctypes.c_int64),
        ("residual_stride", ctypes.c_int64),
        ("y_stride", ctypes.c_int64),
        ("tf32", ctypes.c_int32),
        ("relu_checked", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("scratch", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("product", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("weight_transposed", ctypes.c_int32),
        ("batch", ctypes.c_int32),
        ("x_batch_stride", ctypes.c_int64),
        ("weight_batch_stride", ctypes.c_int64),
        ("residual_first", ctypes.c_int32),
        ("windows", Windows),
        ("product_version", ctypes.c_int64),
    )


class Choice(ctypes.Structure):
    """`fuseconv::linear::Choice`."""

    _fields_ = (("backend", ctypes.c_int32), ("variant", ctypes.c_int32))


class Timing(ctypes.Structure):
    """`fuseconv::linear::Timing`."""

    _fields_ = (("choice", Choice), ("microseconds", ctypes.c_float))


class Library:
    """The C interface, with torch's tensors."""

    def __init__(self, path: Path) -> None:
        torch.mm(
            torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
        )  # loads torch's cuBLAS, which ours links to
        self.library = ctypes.CDLL(str(path.resolve()))
        self.library.fuseconv_linear_cublas_version.restype = ctypes.c_long
        self.message = ctypes.create_string_buffer(4096)
        self.workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")

    def problem(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        act: str,
        residual: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        scratch: torch.Tensor | None = None,
        *,
        form: str = "plain",
    ) -> tuple[Problem, torch.Tensor]:
        """The problem, and y filled with NaN.

        The forms "gated" and "residual first" are told apart; all others are alike. The problem keeps no reference to
        the tensors: the caller must.
        """
        (m, k), n = x.shape, weight.shape[0] // (2 if form == "gated" else 1)
        if y is None:
            y = torch.full((m, n), float("nan"), dtype=x.dtype, device=x.device)
        return Problem(
            element=ELEMENTS[x.dtype],
            activation=Activation(list(ACTIVATIONS).index(act), PARAMETERS.get(act, 0.0)),
            m=m,
            n=n,
            k=k,
            x=x.data_ptr(),
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            y=y.data_ptr(),
            x_stride=x.stride(0),
            weight_stride=weight.stride(0),
            residual_stride=0 if residual is None else residual.stride(0),
            y_stride=y.stride(0),
            gated=int(form == "gated"),
            residual_first=int(form == "residual first"),
            scratch=None if scratch is None else scratch.data_ptr(),
            workspace=self.workspace.data_ptr(),
            workspace_bytes=self.workspace.numel(),
        ), y

    def _call(self, function: str, problem: Problem, *arguments: object) -> int:
        problem.stream = torch.cuda.current_stream().cuda_stream
        code = getattr(self.library, function)(ctypes.byref(problem), *arguments, self.message, 4096)
        if code < 0:
            raise RuntimeError(self.message.value.decode())
        return int(code)

    def run(self, problem: Problem, choice: Choice) -> None:
        """Queues one call on torch's current stream."""
        self._call("fuseconv_linear_run", problem, choice)

    def choose(self, problem: Problem, *, may_time: bool = True) -> Choice:
        """The library's own choice; timed where that is allowed and not done yet."""
        choice = Choice()
        self._call("fuseconv_linear_choose", problem, int(may_time), ctypes.byref(choice))
        return choice

    def timings(self, problem: Problem) -> list[tuple[Choice, float]]:
        """Every candidate with its microseconds, fastest first."""
        room = (Timing * 64)()
        found = self._call("fuseconv_linear_time", problem, room, len(room))
        return [(Choice(t.choice.backend, t.choice.variant), t.microseconds) for t in room[:found]]

    def describe(self, choice: Choice) -> str:
        """As a person reads it."""
        self.library.fuseconv_linear_describe(choice, self.message, 4096)
        return self.message.value.decode()


def draw(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias whose product has variance near 1: zeros would run faster than real data."""
    generator = torch.Generator(device="cuda").manual_seed(m * 7 + n * 3 + k)
    x, weight, bias = (torch.randn(s, device="cuda", generator=generator) for s in ((m, k), (n, k), (n,)))
    return x.to(dtype), (weight / math.sqrt(k)).to(dtype), (bias / 2).to(dtype)


def error(y: torch.Tensor, reference: torch.Tensor) -> float:
    """Root of the mean squared error, relative to that of the reference."""
    return ((y.double() - reference).square().mean() / reference.square().mean()).sqrt().item()

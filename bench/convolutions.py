"""Times conv_act against cuDNN's bare convolution, eager PyTorch and torch.compile.

    python bench/convolutions.py bench/results/h200_implicit_gemm.json
    python bench/convolutions.py bench/results/h200_convolutions_in_f32.json --dtype f32 --without-tf32 --only tcn

`bare` is torch's convolution without a bias, with `torch.backends.cudnn.benchmark`: what no fusion can be faster than
unless it has a better kernel. `gb_per_s` counts x, weight, residual and result once each. All tensors are channels last
except those of the peers' 1-D convolutions, for which PyTorch has no such format.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import DTYPES
from clock import AGAIN, COLD_BYTES, COLD_SETS, microseconds, noise, ratio
from record import Row, machine, write
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.layout import channels_last

ROUNDS = 9
KEY = ("model", "x", "weight", "stride", "dilation", "groups", "act", "residual", "dtype")


@dataclass(frozen=True)
class Case:
    """A convolution of a model. All dims have the same size, kernel, and padding, which keeps the size at stride 1."""

    model: str
    batch: int
    channels: int
    size: int
    out: int
    kernel: int
    stride: int = 1
    groups: int = 1
    act: str = "relu"
    residual: bool = False
    dilation: int = 1
    dims: int = 2

    @property
    def padding(self) -> int:
        """The zeros before and after each dim."""
        return (self.kernel - 1) * self.dilation // 2


RESNET = [
    Case("resnet-50", 64, 3, 224, 64, 7, 2),
    Case("resnet-50", 64, 64, 56, 64, 1),
    Case("resnet-50", 64, 64, 56, 64, 3),
    Case("resnet-50", 64, 64, 56, 256, 1, residual=True),
    Case("resnet-50", 64, 256, 56, 64, 1),
    Case("resnet-50", 64, 128, 56, 128, 3, 2),
    Case("resnet-50", 64, 128, 28, 128, 3),
    Case("resnet-50", 64, 128, 28, 512, 1, residual=True),
    Case("resnet-50", 64, 512, 28, 128, 1),
    Case("resnet-50", 64, 256, 14, 256, 3),
    Case("resnet-50", 64, 256, 14, 1024, 1, residual=True),
    Case("resnet-50", 64, 1024, 14, 256, 1),
    Case("resnet-50", 64, 512, 7, 512, 3),
    Case("resnet-50", 64, 512, 7, 2048, 1, residual=True),
]
EFFICIENTNET = [
    Case("efficientnet-b0", 32, 3, 224, 32, 3, 2, act="silu"),
    Case("efficientnet-b0", 32, 32, 112, 32, 3, groups=32, act="silu"),
    Case("efficientnet-b0", 32, 16, 112, 96, 1, act="silu"),
    Case("efficientnet-b0", 32, 96, 112, 96, 3, 2, groups=96, act="silu"),
    Case("efficientnet-b0", 32, 144, 56, 24, 1, act="none", residual=True),
    Case("efficientnet-b0", 32, 144, 56, 144, 5, 2, groups=144, act="silu"),
    Case("efficientnet-b0", 32, 240, 28, 240, 3, groups=240, act="silu"),
    Case("efficientnet-b0", 32, 672, 14, 672, 5, groups=672, act="silu"),
    Case("efficientnet-b0", 32, 112, 14, 672, 1, act="silu"),
    Case("efficientnet-b0", 32, 1152, 7, 1152, 3, groups=1152, act="silu"),
]
OTHER = [
    Case("convnext-t", 64, 96, 56, 96, 7, groups=96, act="none"),
    Case("regnet-y", 64, 232, 28, 232, 3, groups=1, act="relu"),
    Case("resnext", 64, 256, 28, 256, 3, groups=32, act="relu"),
    Case("unet", 4, 320, 64, 320, 3, act="silu"),
    Case("unet", 2, 640, 32, 640, 3, act="none", residual=True),
    Case("unet", 4, 320, 64, 320, 3, 2, act="none"),
    Case("vgg", 32, 256, 56, 256, 3),
    Case("detector", 16, 3, 640, 32, 3, 2, act="silu"),
    Case("detector", 16, 32, 160, 64, 3, 2, act="silu"),
    Case("detector", 16, 64, 80, 64, 3, act="silu"),
    Case("detector", 16, 128, 40, 128, 3, act="silu", residual=True),
    Case("detector", 1, 256, 20, 256, 3, act="silu"),
    Case("efficientnet-v2", 32, 24, 112, 24, 3, act="silu", residual=True),
    Case("efficientnet-v2", 32, 24, 112, 96, 3, 2, act="silu"),
    Case("efficientnet-v2", 32, 48, 56, 192, 3, act="silu"),
    Case("mobilenet-v3", 32, 3, 224, 16, 3, 2, act="hard_swish"),
    Case("wav2vec2", 8, 512, 12800, 512, 3, 2, act="gelu", dims=1),
    Case("whisper", 32, 80, 3000, 384, 3, act="gelu", dims=1),
    Case("whisper", 32, 384, 3000, 384, 3, 2, act="gelu", dims=1),
    Case("hifi-gan", 8, 256, 1600, 256, 11, act="leaky_relu(0.1)", dilation=5, dims=1),
    Case("hifi-gan", 8, 128, 12800, 128, 7, act="leaky_relu(0.1)", dilation=3, dims=1),
    Case("hifi-gan", 8, 32, 51200, 32, 3, act="leaky_relu(0.1)", residual=True, dims=1),
    Case("tcn", 32, 64, 512, 64, 3, dilation=4, dims=1),
    Case("tcn", 32, 128, 512, 128, 3, dilation=16, dims=1),
    Case("conformer", 8, 512, 250, 512, 31, groups=512, act="silu", dims=1),
    Case("quartznet", 32, 512, 800, 512, 63, groups=512, dims=1),
    Case("van", 32, 64, 56, 64, 7, groups=64, act="none", dilation=3),
    Case("replknet", 8, 128, 56, 128, 31, groups=128),
]


def calls(
    case: Case, dtype: torch.dtype
) -> tuple[dict[str, Callable[..., Any]], Callable[[], list[Tensor | None]], int]:
    """Returns the peers, a function that draws operands, and the bytes that a call reads and writes."""
    generator = torch.Generator("cuda").manual_seed(0)
    size = (case.size + 2 * case.padding - (case.kernel - 1) * case.dilation - 1) // case.stride + 1
    shapes = {
        "x": (case.batch, case.channels, *[case.size] * case.dims),
        "weight": (case.out, case.channels // case.groups, *[case.kernel] * case.dims),
        "residual": (case.batch, case.out, *[size] * case.dims),
    }
    scale = 1 / math.sqrt(math.prod(shapes["weight"][1:]))

    def drawn(name: str, factor: float = 1.0) -> Tensor:
        values = torch.randn(shapes[name], device="cuda", generator=generator) * factor
        return values.to(dtype) if case.dims == 1 else channels_last(values.to(dtype))

    def draw() -> list[Tensor | None]:
        bias = torch.randn(case.out, device="cuda", generator=generator).to(dtype)
        return [drawn("x"), drawn("weight", scale), bias, drawn("residual") if case.residual else None]

    each = ([number] * case.dims for number in (case.stride, case.padding, case.dilation, 0))
    stride, padding, dilation, none = each
    numbers = (stride, padding, dilation, False, none, case.groups)

    def bare(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
        return torch.convolution(x, weight, None, *numbers)

    def eager(*operands: Any) -> Tensor:
        return ops.conv_act.reference(*operands, *numbers, case.act)

    def ours(*operands: Any) -> Tensor:
        return ops.conv_act(*operands, *numbers, case.act, tf32=torch.backends.cudnn.allow_tf32)

    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False)
    moved = sum(math.prod(shape) for name, shape in shapes.items()) + case.residual * math.prod(shapes["residual"])
    return {"ours": ours, AGAIN: ours, "bare": bare, "eager": eager, "compile": compiled}, draw, dtype.itemsize * moved


def measure(case: Case, dtype: torch.dtype) -> Row:
    """Returns the row of a case."""
    peers, draw, moved = calls(case, dtype)
    sets = [draw() for _ in range(max(COLD_SETS, -(-COLD_BYTES // moved)))]
    expected = peers["eager"](*(None if t is None else t.double() for t in sets[0])).float()
    last = [[t if t is None or t.dim() == 1 else channels_last(t) for t in s] for s in sets]
    error = float((peers["ours"](*last[0]).float() - expected).pow(2).mean().sqrt())
    eager_error = float((peers["eager"](*sets[0]).float() - expected).pow(2).mean().sqrt())
    given = {name: last if name in ("ours", AGAIN) else sets for name in peers}
    bound = {name: [lambda call=call, s=s: call(*s) for s in given[name]] for name, call in peers.items()}
    times = microseconds(bound, "cuda", ROUNDS)
    us = {name: round(statistics.median(values), 2) for name, values in times.items() if name != AGAIN}
    return {
        "model": case.model,
        "x": [case.batch, case.channels, *[case.size] * case.dims],
        "weight": [case.out, case.channels // case.groups, *[case.kernel] * case.dims],
        "stride": case.stride,
        "dilation": case.dilation,
        "groups": case.groups,
        "act": case.act,
        "residual": case.residual,
        "dtype": str(dtype).removeprefix("torch."),
        "tf32": dtype == torch.float32 and torch.backends.cudnn.allow_tf32,
        "us": us,
        "of_bare": round(ratio(times, "ours", "bare"), 4),
        "ratios": {peer: round(ratio(times, peer, "ours"), 3) for peer in ("eager", "compile")},
        "gb_per_s": round(moved / us["ours"] / 1e3),
        "rmse": error,
        "eager_rmse": eager_error,
        "noise": round(noise(times, "ours"), 4),
    }


def report(rows: Sequence[Row], model: str) -> str:
    """Returns the geometric mean of ours over the bare convolution."""
    of_bare = [row["of_bare"] for row in rows if row["model"] == model]
    return f"{model}: {math.exp(statistics.fmean(map(math.log, of_bare))):.3f} of bare over {len(of_bare)} convolutions"


def main() -> None:
    """Measures, prints and writes."""
    os.environ.setdefault("FUSECONV_TIMING", "on")  # as in a bundle, whose tactics are measured
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", help="models; all if not given")
    parser.add_argument("--dtype", choices=("f16", "bf16", "f32"), default="f16")
    parser.add_argument("--without-tf32", action="store_true", help="forbid TF32, for PyTorch's convolutions too")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = not arguments.without_tf32
    rows = []
    cases = [case for case in [*RESNET, *EFFICIENTNET, *OTHER] if case.model in (arguments.only or case.model)]
    for case in cases:
        rows.append(measure(case, DTYPES[arguments.dtype]))
        print(rows[-1], flush=True)
        write(arguments.out, rows, machine("cuda"), KEY)
    for model in dict.fromkeys(row["model"] for row in rows):
        print(report(rows, model))


if __name__ == "__main__":
    main()

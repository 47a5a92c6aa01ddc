"""Times ops on transposed operands beside contiguous ones, a copy, and eager PyTorch on the same operands.

    python bench/layouts.py bench/results/h200_layouts.json
    python bench/layouts.py bench/results/cpu_layouts.json --device cpu

A transposed operand [B, S, C] has S innermost in memory, as after `x.transpose(1, 2)`, which mixers and convolutions
give. A group norm takes the channels as dim 1, [B, C, S]: its "contiguous" operand is channels last, and its
"transposed" one contiguous. `copy` copies a contiguous tensor of the size of x: what no kernel that reads x and writes
as much can beat.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from clock import AGAIN, COLD_BYTES, COLD_SETS, Call, microseconds, noise
from record import Row, machine, write
from torch import Tensor
from torch.nn import functional

from fuseconv import ops

ROUNDS = 9
KEY = ("op", "dtype", "shape")
SHAPES = {
    "cuda": ((64, 196, 768), (64, 3136, 96), (16, 1024, 1024), (32, 197, 768), (64, 784, 192)),
    "cpu": ((1, 196, 768), (1, 3136, 96), (1, 4096, 320), (8, 196, 320)),
}
DTYPES = {"cuda": (torch.float16, torch.bfloat16, torch.float32), "cpu": (torch.bfloat16, torch.float32)}
GROUPS = (1, 32)  # of a group norm


@dataclass(frozen=True)
class Operands:
    """Random tensors: two layouts of one shape, another of it, and parameters of the last dim."""

    transposed: Tensor
    contiguous: Tensor
    other: Tensor
    scale: Tensor
    bias: Tensor
    weight: Tensor


Op = Callable[[Tensor, Operands], Any]

OPS: dict[str, tuple[Op, Op]] = {
    "layer_norm_act": (
        lambda x, o: ops.layer_norm_act(x, o.scale, o.bias, 1e-5, "none"),
        lambda x, o: functional.layer_norm(x, o.scale.shape, o.scale, o.bias),
    ),
    "add_layer_norm": (
        lambda x, o: ops.add_layer_norm(o.other, x, o.scale, o.bias, 1e-5),
        lambda x, o: functional.layer_norm(o.other + x, o.scale.shape, o.scale, o.bias),
    ),
    **{
        f"group_norm_act, groups={groups}": (
            lambda x, o, groups=groups: ops.group_norm_act(x.movedim(-1, 1), groups, o.scale, o.bias, 1e-5, "none"),
            lambda x, o, groups=groups: functional.group_norm(x.movedim(-1, 1), groups, o.scale, o.bias),
        )
        for groups in GROUPS
    },
    "add_relu": (lambda x, o: ops.add_relu(o.other, x), lambda x, o: torch.relu(o.other + x)),
    "linear_act": (
        lambda x, o: ops.linear_act(x, o.weight, o.bias, act="gelu"),
        lambda x, o: functional.gelu(functional.linear(x, o.weight, o.bias)),
    ),
}
"""Ours and eager PyTorch's."""


def measure(name: str, dtype: torch.dtype, shape: tuple[int, int, int], device: str) -> Row:
    """Returns the row of an op."""
    batch, rows, columns = shape
    ours, eager = OPS[name]

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    def draw() -> Operands:
        transposed = normal(batch, columns, rows).transpose(1, 2)
        parameters = normal(columns), normal(columns), normal(columns, columns) / columns**0.5
        return Operands(transposed, normal(*shape), normal(*shape), *parameters)

    moved = 2 * batch * rows * columns * dtype.itemsize
    cold = COLD_BYTES if device == "cuda" else 0
    sets = [draw() for _ in range(max(COLD_SETS, -(-cold // moved)))]

    def on(op: Op, layout: str) -> list[Call]:
        def call(operands: Operands) -> Call:
            return lambda: op(getattr(operands, layout), operands)

        return [call(operands) for operands in sets]

    calls = {
        "transposed": on(ours, "transposed"),
        AGAIN: on(ours, "transposed"),
        "contiguous": on(ours, "contiguous"),
        "eager_transposed": on(eager, "transposed"),
        "eager_contiguous": on(eager, "contiguous"),
        "copy": on(lambda x, _: x.clone(), "contiguous"),
    }
    times = microseconds(calls, device, ROUNDS)
    us = {peer: round(statistics.median(values), 2) for peer, values in times.items() if peer != AGAIN}
    kind = str(dtype).removeprefix("torch.")
    return {"op": name, "dtype": kind, "shape": list(shape), "us": us, "noise": round(noise(times, "transposed"), 4)}


def main() -> None:
    """Measures, prints and writes."""
    os.environ.setdefault("FUSECONV_TIMING", "on")  # as in a bundle, whose tactics are measured
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    arguments = parser.parse_args()
    with torch.no_grad():
        for name in OPS:
            for dtype, shape in itertools.product(DTYPES[arguments.device], SHAPES[arguments.device]):
                row = measure(name, dtype, shape, arguments.device)
                print(row, flush=True)
                write(arguments.out, [row], machine(arguments.device), KEY)


if __name__ == "__main__":
    main()

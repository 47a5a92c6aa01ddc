"""Measures how far f32 products are from float64: linear_act by backend `tf32x3`, and by torch's own.

    python bench/f32_errors.py bench/results/h200_f32_errors.json

A row has the root mean square of the errors of y = x w^T, and their mean, each over the root mean square of y.
`positive` are factors without a sign, whose truncations would all be of one; `scale` is about the size of x.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import record
import torch

from fuseconv import ops

KEY = ("op", "backend", "m", "n", "k", "positive", "scale")
SCALES = (1e-30, 1e-36, 1e-38)
SIZES = [(512, 512, 64), (512, 512, 256), (1024, 1024, 768), (4096, 3072, 768), (1024, 1024, 4096), (512, 1024, 16384)]


def errors(m: int, n: int, k: int, *, positive: bool = False, scale: float = 1.0) -> list[dict[str, Any]]:
    """Returns a row a backend."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, weight = (torch.randn(shape, device="cuda", generator=generator) for shape in ((m, k), (n, k)))
    weight /= math.sqrt(k)
    if positive:
        x, weight = x.abs(), weight.abs()
    x *= scale
    fp64 = x.double() @ weight.double().T
    size = fp64.square().mean().sqrt()
    rows = []
    for backend in ("tf32x3", "aten"):
        off = (ops.linear_act(x, weight, backend=backend).double() - fp64) / size
        rows.append(
            {
                "op": "linear_act",
                "dtype": "f32",
                "backend": backend,
                "m": m,
                "n": n,
                "k": k,
                "positive": positive,
                "scale": scale,
                "rms_error": off.square().mean().sqrt().item(),
                "mean_error": off.mean().item(),
            }
        )
    return rows


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    rows = [row for size, sign in itertools.product(SIZES, (False, True)) for row in errors(*size, positive=sign)]
    rows += [row for scale in SCALES for row in errors(*SIZES[1], scale=scale)]
    for row in rows:
        print(*row.values())
    record.write(arguments.out, rows, record.machine("cuda"), KEY)


if __name__ == "__main__":
    main()

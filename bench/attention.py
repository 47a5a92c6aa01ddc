"""Times the op attention beside each of PyTorch's attention kernels and a copy, on CUDA.

    python bench/attention.py bench/results/h200_attention.json

The operands are views of one merged projection, [batch, tokens, 3, heads, width], as in most models. `copy` copies as
many bytes as attention must read and write.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch
from clock import AGAIN, COLD_BYTES, COLD_SETS, Call, microseconds, noise
from record import Row, machine, write
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fuseconv import ops

ROUNDS = 9
KEY = ("shape", "mask", "dtype")
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SHAPES = (
    *((2048, 3, 49, 32), (512, 6, 49, 32), (128, 12, 49, 32), (32, 24, 49, 32), (2048, 3, 64, 32), (2048, 1, 64, 96)),
    *((224, 16, 63, 8), (64, 12, 16, 64), (64, 12, 32, 64), (64, 12, 64, 64), (1, 12, 64, 64)),
    *((512, 4, 144, 32), (128, 12, 196, 64), (16, 12, 77, 64), (1, 12, 128, 64), (32, 12, 128, 64), (64, 12, 197, 64)),
)
"""Batch, heads, tokens and width: windows of 7x7 and 8x8 pixels, patches of time series, short texts; and lengths for
which the rules keep PyTorch's kernels."""
MASKS = ("none", "window")
LONG = (
    *((4, 12, 36, 64), (4, 12, 223, 64), (4, 12, 404, 64), (1, 12, 1024, 64), (16, 12, 300, 64), (64, 12, 300, 64)),
    *((1, 12, 197, 64), (64, 12, 197, 64), (128, 6, 257, 64), (32, 12, 128, 64), (32, 12, 512, 64), (4, 16, 4096, 64)),
    *((8, 8, 577, 40), (4, 32, 512, 128), (1, 32, 2048, 128), (2, 16, 8192, 128)),
)
"""Texts, images and contexts whose sizes change, for which `targets/unplanned_attention.py` selects the kernel."""
LONG_MASKS = ("none", "causal", "keys", "pairs")


def mask_of(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """Returns the mask of a call.

    It is none, one per sequence that hides its last keys, one per sequence and query, or one per window and head that
    all images share, in rows of 16 bytes.
    """
    batch, heads, tokens, _ = shape
    if kind in ("none", "causal"):
        return None
    if kind == "keys":
        lengths = torch.linspace(tokens // 2, tokens, batch, device="cuda")[:, None]
        hidden = torch.arange(-(-tokens // 8) * 8, device="cuda") >= lengths
        mask = torch.zeros(hidden.shape, device="cuda", dtype=dtype).masked_fill(hidden, -math.inf)
        return mask[:, None, None, :tokens]
    rows = -(-tokens // 8) * 8
    if kind == "pairs":
        return torch.randn(batch, 1, tokens, rows, device="cuda", dtype=dtype)[..., :tokens]
    windows = math.gcd(batch, 64)
    mask = torch.randn(1, windows, heads, tokens, rows, device="cuda", dtype=dtype)[..., :tokens]
    return mask.expand(batch // windows, -1, -1, -1, -1)


def measure(shape: tuple[int, int, int, int], kind: str, dtype: torch.dtype) -> Row:
    """Returns the row of a call."""
    batch, heads, tokens, width = shape
    scale = width**-0.5
    moved = 4 * batch * heads * tokens * width * dtype.itemsize

    def draw() -> tuple[Tensor, ...]:
        merged = torch.randn(batch, tokens, 3, heads, width, device="cuda", dtype=dtype)
        return tuple(merged.permute(2, 0, 3, 1, 4))

    sets = [draw() for _ in range(max(COLD_SETS, -(-COLD_BYTES // moved)))]
    mask = mask_of(kind, shape, dtype)
    whole = mask.expand(batch, heads, tokens, tokens) if mask is not None and kind in LONG_MASKS else mask
    if whole is not None and kind not in LONG_MASKS:
        whole = whole.reshape(batch, heads, tokens, tokens)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Call:
        if kind == "causal":
            return lambda: ops.causal_attention(q, k, v, scale)
        if mask is None or kind in LONG_MASKS:
            return lambda: ops.attention(q, k, v, mask, scale)
        parts = [one.unflatten(0, mask.shape[:2]) for one in (q, k, v)]
        return lambda: ops.attention(*parts, mask, scale)

    def by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Call:
        def call() -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, whole, is_causal=kind == "causal", scale=scale)

        return call

    backends = {name: one for name, one in BACKENDS.items() if name != "flash" or mask is None}
    calls: dict[str, list[Call]] = {"ours": [ours(*one) for one in sets], AGAIN: [ours(*one) for one in sets]}
    calls |= {name: [by(backend, *one) for one in sets] for name, backend in backends.items()}
    copied = [torch.empty(moved // 2 // dtype.itemsize, device="cuda", dtype=dtype) for _ in sets]
    calls["copy"] = [one.clone for one in copied]
    times = microseconds(calls, "cuda", ROUNDS)
    us = {peer: round(statistics.median(values), 2) for peer, values in times.items() if peer != AGAIN}
    name = str(dtype).removeprefix("torch.")
    return {"shape": list(shape), "mask": kind, "dtype": name, "us": us, "noise": round(noise(times, "ours"), 4)}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--long", action="store_true", help="the long sequences instead of the short ones")
    arguments = parser.parse_args()
    masks, shapes = (LONG_MASKS, LONG) if arguments.long else (MASKS, SHAPES)
    with torch.no_grad():
        for kind in masks:
            for shape in shapes:
                row = measure(shape, kind, torch.float16)
                print(row, flush=True)
                write(arguments.out, [row], machine("cuda"), KEY)


if __name__ == "__main__":
    main()

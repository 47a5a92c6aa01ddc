"""Times linear_gated's CUDA backends against torch, in one process, from CUDA graphs; writes JSON.

    python bench/linear_gated.py build/libfuseconv_linear.so bench/results/h200_linear_gated.json

The library and the checks are those of linear_library.py. `limit_us` is torch's bare mm of the product,
[M, K] by [K, 2H]; `sm90_us` the fastest of our fused kernel, also where another backend was chosen; the peers are
what a user of torch gets with one merged weight, eager and compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from clock import COLD_BYTES, Call, microseconds
from linear_library import ACTIVATIONS, BACKENDS, Library, draw, error
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

ROWS = [  # m, h, k, act
    (2048, 5632, 2048, "silu"),
    (4096, 11008, 4096, "silu"),
    (128, 11008, 4096, "silu"),
    (16, 5632, 2048, "silu"),
    (4096, 3072, 768, "gelu"),
    (4096, 3072, 768, "gelu_tanh"),
    (4096, 3072, 768, "sigmoid"),
]
MODES = {"default": "compile_us", "max-autotune-no-cudagraphs": "max_autotune_us"}


def gated(act: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]:
    """The layer in torch, with one product for gates and ups."""
    function = ACTIVATIONS[act]

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        gate, up = F.linear(x, weight, bias).chunk(2, -1)
        return function(gate) * up

    return layer


def measure(
    library: Library, row: tuple[int, int, int, str], dtype: torch.dtype, modes: tuple[str, ...], *, cold: bool
) -> dict[str, object]:
    """One row; `cold` rotates operands so that none is in L2."""
    m, h, k, act = row
    bytes_moved, flops = dtype.itemsize * (m * k + 2 * h * k + m * h), 4 * m * h * k
    x, weight, _ = draw(m, 2 * h, k, dtype)
    sets = [(x, weight, None)]
    if cold:
        sets += [(x.clone(), weight.clone(), None) for _ in range(COLD_BYTES // (dtype.itemsize * (m + 2 * h) * k))]
    layer = gated(act)
    # Not the whole product: in f64 that of the largest row would take minutes.
    rows = slice(0, 512)
    reference = layer(x[rows].double(), weight.double(), None)
    scratch = torch.empty(m, 2 * h, dtype=dtype, device="cuda")
    problems = [library.problem(*s, act, scratch=scratch, gated=True) for s in sets]
    choice = library.choose(problems[0][0])
    library.run(problems[0][0], choice)
    result: dict[str, object] = {
        "op": "linear_gated",
        "act": act,
        "backend": BACKENDS[choice.backend],
        "variant": library.describe(choice),
        "dtype": str(dtype).removeprefix("torch."),
        "shape": [m, h, k],
        "cold": cold,
        "error": error(problems[0][1][rows], reference),
        "eager_error": error(layer(*sets[0])[rows], reference),
        "bytes": bytes_moved,
        "flops": flops,
    }
    calls: dict[str, list[Call]] = {
        "mm": [lambda s=s: torch.mm(s[0], s[1].t()) for s in sets],
        "mm again": [lambda s=s: torch.mm(s[0], s[1].t()) for s in sets],
        "ours": [lambda p=p: library.run(p, choice) for p, _ in problems],
        "eager": [lambda s=s: layer(*s) for s in sets],
    }
    fused = [c for c, _ in library.timings(problems[0][0]) if BACKENDS[c.backend] == "sm90"][:1]
    for c in fused:
        calls["sm90"] = [lambda p=p, c=c: library.run(p, c) for p, _ in problems]
    for mode in modes:
        call = torch.compile(gated(act), mode=mode, dynamic=False)
        call(*sets[0])
        calls[mode] = [lambda s=s, f=call: f(*s) for s in sets]
    times = microseconds(calls, "cuda", 9)
    middle = {name: statistics.median(values) for name, values in times.items()}
    result |= {"us": middle["ours"], "limit_us": middle["mm"], "eager_us": middle["eager"]}
    result |= {name: middle.get(mode) for mode, name in MODES.items()}
    result["sm90_us"] = middle.get("sm90")
    result["same_call_twice"] = abs(middle["mm again"] / middle["mm"] - 1)
    return result


def line(row: dict[str, object]) -> str:
    """One row as a person reads it."""
    peers = [f"{p.removesuffix('_us')} {row[p]:.2f}" for p in ("eager_us", *MODES.values()) if row[p]]
    where = f"{row['dtype']:8} {'cold' if row['cold'] else 'warm'} {row['act']:9} {row['shape']!s:19}"
    ratio = f"{row['us']:7.2f} mm {row['limit_us']:7.2f} ({row['us'] / row['limit_us']:.3f})"
    if row["sm90_us"]:
        peers.append(f"sm90 {row['sm90_us']:.2f}")
    return " ".join([where, ratio, *peers, f"error {row['error']:.2e}/{row['eager_error']:.2e}", row["variant"]])


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile-seconds", type=float, default=600, help="after these, rows have no compiled peers")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    library, started, rows = Library(arguments.library), time.monotonic(), []
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    versions["cublas"] = library.library.fuseconv_linear_cublas_version()
    for cold in (False, True):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for row in ROWS:
                if dtype is torch.float32 and (cold or row[0] > 2048):
                    continue  # f32 is bound by its own rate at any size
                peers = dtype is torch.bfloat16 and not cold and time.monotonic() - started < arguments.compile_seconds
                rows.append(measure(library, row, dtype, tuple(MODES) if peers else (), cold=cold))
                print(line(rows[-1]), flush=True)
                text = json.dumps(
                    {"device": torch.cuda.get_device_name(), "versions": versions, "rows": rows}, indent=1
                )
                arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

"""mlp against eager and torch.compile on one GPU: CUDA-graph replay, peers interleaved, inputs rotated.

    python bench/mlp.py OUT.json [--compile-seconds 60] [--dtypes bfloat16,float16,float32]

limit_us is the larger of the bytes over the copy bandwidth and the operations over the rate of a large product, both
measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuseconv import ops

ROTATED = 180 << 20
CALLS = 12
ROUNDS = 11


@dataclass(frozen=True)
class Case:
    """One row: batch and widths of an MLP."""

    batch: int
    widths: tuple[int, ...]
    act: str
    dtype: torch.dtype

    def inputs(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Returns enough different x to miss the cache, and the layers' weights and biases."""
        draw = torch.Generator("cuda").manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(shape, device="cuda", dtype=torch.float32, generator=draw) * scale
            return values.to(self.dtype)

        size = self.batch * (self.widths[0] + self.widths[-1]) * self.dtype.itemsize
        xs = [normal(self.batch, self.widths[0]) for _ in range(min(CALLS, max(1, -(-ROTATED // size))))]
        layers: list[Tensor | None] = []
        for k, n in pairwise(self.widths):
            layers += [normal(n, k, scale=k**-0.5), normal(n)]
        return xs, layers

    def flops(self) -> int:
        """Returns the operations of the products."""
        return sum(2 * self.batch * k * n for k, n in pairwise(self.widths))

    def bytes(self) -> int:
        """Returns what must be read and written once."""
        weights = sum((k + 1) * n for k, n in pairwise(self.widths))
        return (self.batch * (self.widths[0] + self.widths[-1]) + weights) * self.dtype.itemsize


def graph_of(call: Callable[[int], Any], calls: int = CALLS) -> torch.cuda.CUDAGraph:
    """Returns a graph of `calls` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    return graph


def interleaved(graphs: dict[str, torch.cuda.CUDAGraph], calls: int = CALLS) -> dict[str, float]:
    """Returns the median microseconds a call of each, one replay of each a round."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for graph in graphs.values():
        graph.replay()
        graph.replay()
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def ceilings() -> tuple[float, dict[torch.dtype, float]]:
    """Returns the copy bandwidth in bytes a microsecond and the rate of a large product in operations a microsecond."""
    a, b = (torch.randn(64 << 20, device="cuda") for _ in range(2))
    copy = interleaved({"copy": graph_of(lambda _: a.copy_(b), 4)}, 4)["copy"]
    rates = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        n = 4096 if dtype is torch.float32 else 8192
        p, q = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(p)
        graph = graph_of(lambda _, p=p, q=q, out=out: torch.mm(p, q, out=out), 2)
        rates[dtype] = 2 * n**3 / interleaved({"mm": graph}, 2)["mm"]
    return 2 * a.nbytes / copy, rates


def measure(case: Case, modes: tuple[str, ...], bandwidth: float, rate: float) -> dict[str, Any]:
    """Returns one row."""
    xs, layers = case.inputs()
    weights = layers if len(layers) == 6 else [*layers, None, None]
    calls = {
        "us": lambda i: ops.mlp(xs[i % len(xs)], *weights, case.act),
        "eager_us": lambda i: ops.mlp.reference(xs[i % len(xs)], *weights, case.act),
    }
    for mode in modes:
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, *w: ops.mlp.reference(x, *w, case.act),
            mode=None if mode == "compile_us" else "max-autotune-no-cudagraphs",
            fullgraph=True,
            dynamic=False,
        )
        calls[mode] = lambda i, compiled=compiled: compiled(xs[i % len(xs)], *weights)
    with torch.no_grad():
        truth = ops.mlp.reference(xs[0].double(), *(w if w is None else w.double() for w in weights), case.act)
        errors = [float((calls[name](0).double() - truth).norm() / truth.norm()) for name in ("us", "eager_us")]
        times = interleaved({name: graph_of(call) for name, call in calls.items()})
    limit = max(case.bytes() / bandwidth, case.flops() / rate)
    peers = {name: times.get(name) for name in ("eager_us", "compile_us", "max_autotune_us")}
    row = {
        "op": "mlp",
        "act": case.act,
        "dtype": str(case.dtype).removeprefix("torch."),
        "shape": [case.batch, *case.widths],
        "us": times["us"],
        "limit_us": limit,
        **peers,
        "bytes": case.bytes(),
        "flops": case.flops(),
        "error": errors[0],
        "eager_error": errors[1],
    }
    print(line(row), flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    """Returns a row as text."""
    peers = " ".join(
        f"{name.removesuffix('_us')} {row[name]:.2f} ({row[name] / row['us']:.2f}x)"
        for name in ("eager_us", "compile_us", "max_autotune_us")
        if row[name]
    )
    what = f"{row['op']:12} {row['dtype']:8} {row['act']:5} {'-'.join(map(str, row['shape'])):22}"
    errors = f"error {row['error']:.1e}/{row['eager_error']:.1e}" if "error" in row else ""
    return f"{what} {row['us']:7.2f} limit {row['limit_us']:6.2f} {peers} {errors}"


def train(case: Case, bandwidth: float, rate: float) -> dict[str, Any]:
    """Returns a row of forward and backward; the backward multiplies twice, and reads and writes all again."""
    xs, layers = case.inputs()
    weights = layers if len(layers) == 6 else [*layers, None, None]
    for tensor in layers:
        assert tensor is not None
        tensor.requires_grad_()
    grad = torch.randn(case.batch, case.widths[-1], device="cuda").to(case.dtype)
    wanted = [tensor for tensor in layers if tensor is not None]

    def step(forward: Callable[..., Tensor]) -> Callable[[int], Any]:
        return lambda i: torch.autograd.grad(forward(xs[i % len(xs)], *weights, case.act), wanted, grad)

    calls = {"us": step(ops.mlp), "eager_us": step(ops.mlp.reference)}
    times = interleaved({name: graph_of(call) for name, call in calls.items()})
    row = {
        "op": "mlp_training",
        "act": case.act,
        "dtype": str(case.dtype).removeprefix("torch."),
        "shape": [case.batch, *case.widths],
        "us": times["us"],
        "limit_us": max(3 * case.bytes() / bandwidth, 3 * case.flops() / rate),
        "eager_us": times["eager_us"],
        "compile_us": None,
        "max_autotune_us": None,
        "bytes": 3 * case.bytes(),
        "flops": 3 * case.flops(),
    }
    print(line(row), flush=True)
    return row


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile-seconds", type=float, default=60, help="a dtype; later rows have no such peer")
    parser.add_argument("--dtypes", default="bfloat16,float16,float32")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    bandwidth, rates = ceilings()
    print(f"copy {bandwidth / 1e6:.2f} TB/s,", {str(d): f"{r / 1e6:.0f} TFLOP/s" for d, r in rates.items()})
    rows = []
    for name in arguments.dtypes.split(","):
        dtype = getattr(torch, name)
        started = time.monotonic()
        cases = [Case(4096, (256,) * 3, "gelu", dtype), Case(256, (256,) * 3, "relu", dtype)]
        cases += [Case(b, (w,) * 3, "relu", dtype) for w in (256, 128, 64) for b in (4096, 16384, 65536)]
        cases += [Case(b, (w,) * 4, "gelu", dtype) for w in (256, 128, 64) for b in (4096, 16384, 65536)]
        cases += [Case(b, (256,) * 3, "gelu", dtype) for b in (16384, 65536)]
        cases += [Case(b, (256,) * 4, "relu", dtype) for b in (4096, 16384, 65536)]
        for case in cases:
            left = time.monotonic() - started < arguments.compile_seconds
            modes = ("max_autotune_us",) if left and dtype is not torch.float32 else ()
            rows.append(measure(case, modes, bandwidth, rates[dtype]))
        rows.append(train(Case(256, (256,) * 3, "relu", dtype), bandwidth, rates[dtype]))
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        report = {"device": torch.cuda.get_device_name(), "versions": versions, "rows": rows}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

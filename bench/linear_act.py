"""Times linear_act's CUDA backends against torch, in one process, from CUDA graphs; writes JSON.

    python bench/linear_act.py build/libfuseconv_linear.so bench/results/h200_gemm_linear_act.json

The library is the backends' plain C interface (csrc/core/linear/c_api.cpp); memory and peers are torch's. A row holds
microseconds a call: `us` ours, as timed and chosen by the library; `limit_us` torch's bare mm of the same run; and what
a user of torch gets, eager and compiled. Every row is checked against f64 before it is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
ELEMENTS = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
BACKENDS = ("cublaslt", "sm90", "cublas", "aten", "sm80")
SIX = [(128, 3072, 768), (4096, 3072, 768), (12608, 3072, 768), (8192, 4096, 1024), (2048, 5632, 2048), (4096,) * 3]
SMALL = [(1, 3072, 768), (16, 3072, 768), (64, 3072, 768), (128, 768, 3072)]
OTHER = [(512, 768, 768), (1024, 3072, 768), (4096, 768, 3072)]
TIMED = ("none", "relu", "gelu_tanh", "gelu", "silu")
COLD_BYTES = 180 << 20
Call = Callable[[], object]


class Problem(ctypes.Structure):
    """`fuseconv::linear::Problem`, field by field."""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("activation", ctypes.c_int32),
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
    )


class Choice(ctypes.Structure):
    """`fuseconv::linear::Choice`."""

    _fields_ = (("backend", ctypes.c_int32), ("variant", ctypes.c_int32))


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
        gated: bool = False,
    ) -> tuple[Problem, torch.Tensor]:
        """The problem, and y filled with NaN. The problem keeps no reference to the tensors: the caller must."""
        (m, k), n = x.shape, weight.shape[0] // (2 if gated else 1)
        if y is None:
            y = torch.full((m, n), float("nan"), dtype=x.dtype, device=x.device)
        return Problem(
            element=ELEMENTS[x.dtype],
            activation=list(ACTIVATIONS).index(act),
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
            gated=int(gated),
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


def microseconds(calls: dict[str, list[Call]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Times of a call in each round: every name's calls, cycled, in one graph; graphs replayed in turn, shuffled."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, variants in calls.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in variants[:2]:
                call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for i in range(repeats):
                variants[i % len(variants)]()
    order, times = list(graphs), {name: [] for name in graphs}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for shuffle in range(rounds + 1):
        random.Random(shuffle).shuffle(order)  # noqa: S311 - an order, not a secret
        for name in order:
            graphs[name].replay()  # hides the launch of the next
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if shuffle:
                times[name].append(begin.elapsed_time(end) * 1e3 / repeats)
    return times


def compiled(act: str, mode: str) -> Callable[..., torch.Tensor]:
    """Linear and activation through torch.compile, without its own CUDA graphs: ours times it from one."""
    function = ACTIVATIONS[act]
    return torch.compile(lambda x, weight, bias: function(F.linear(x, weight, bias)), mode=mode, dynamic=False)


def measure(
    library: Library, shape: tuple[int, int, int], dtype: torch.dtype, modes: tuple[str, ...], *, cold: bool
) -> list[dict[str, object]]:
    """Rows of one shape and dtype, every activation; `cold` rotates operands so that none is in L2."""
    m, n, k = shape
    bytes_moved, flops = 2 * (m * k + n * k + m * n), 2 * m * n * k
    sets = [draw(m, n, k, dtype)]
    if cold:
        sets += [tuple(t.clone() for t in sets[0]) for _ in range(COLD_BYTES // (2 * (m * k + n * k)))]
    calls: dict[str, list[Call]] = {
        "mm": [lambda x=x, w=w: torch.mm(x, w.t()) for x, w, _ in sets],
        "mm again": [lambda x=x, w=w: torch.mm(x, w.t()) for x, w, _ in sets],
    }
    rows, keep = [], []
    for act in TIMED:
        function = ACTIVATIONS[act]
        x, w, b = sets[0]
        reference = function(x.double() @ w.double().T + b.double())
        problem, y = library.problem(x, w, b, act)
        choice = library.choose(problem)
        library.run(problem, choice)
        rows.append(
            {
                "op": "linear_act",
                "act": act,
                "backend": BACKENDS[choice.backend],
                "variant": library.describe(choice),
                "dtype": str(dtype).removeprefix("torch."),
                "shape": list(shape),
                "cold": cold,
                "error": error(y, reference),
                "eager_error": error(function(F.linear(x, w, b)), reference),
                "bytes": bytes_moved,
                "flops": flops,
            }
        )
        problems = [library.problem(*operands, act) for operands in sets]
        keep.append(problems)
        calls[f"ours {act}"] = [lambda p=p, c=choice: library.run(p, c) for p, _ in problems]
        calls[f"eager {act}"] = [lambda s=s, f=function: f(F.linear(*s)) for s in sets]
        for mode in modes:
            call = compiled(act, mode)
            call(*sets[0])
            calls[f"{mode} {act}"] = [lambda s=s, f=call: f(*s) for s in sets]
    repeats = max(len(sets), min(60, max(4, int(1e-3 / (flops / 600e12 + 3e-6)))))
    times = microseconds(calls, 9, repeats)
    middle = {name: statistics.median(values) for name, values in times.items()}
    spread = abs(middle["mm again"] / middle["mm"] - 1)
    for row in rows:
        act = row["act"]
        row |= {
            "us": middle[f"ours {act}"],
            "limit_us": middle["mm"],
            "eager_us": middle[f"eager {act}"],
            "compile_us": middle.get(f"default {act}"),
            "max_autotune_us": middle.get(f"max-autotune-no-cudagraphs {act}"),
            "same_call_twice": spread,
        }
    return rows


def summary(rows: list[dict[str, object]]) -> str:
    """Geometric means over the rows of one dtype and activation, then every row."""
    lines = []
    six = [list(s) for s in SIX]
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        for act in TIMED:
            chosen = [
                r for r in rows if r["dtype"] == dtype and r["act"] == act and r["shape"] in six and not r["cold"]
            ]
            if len(chosen) == len(SIX):
                mean = {
                    peer: math.exp(statistics.mean(math.log(r[peer] / r["us"]) for r in chosen))
                    for peer in ("limit_us", "eager_us", "compile_us", "max_autotune_us")
                    if all(r[peer] for r in chosen)
                }
                text = " ".join(f"{peer.removesuffix('_us')}/ours {value:.3f}" for peer, value in mean.items())
                lines.append(f"{dtype:8} {act:9} ours/mm {1 / mean['limit_us']:.3f} {text}")
    for r in rows:
        peers = [f"{p.removesuffix('_us')} {r[p]:.2f}" for p in ("eager_us", "compile_us", "max_autotune_us") if r[p]]
        where = f"{r['dtype']:8} {'cold' if r['cold'] else 'warm'} {r['act']:9} {r['shape']!s:20}"
        ratio = f"{r['us']:7.2f} mm {r['limit_us']:7.2f} ({r['us'] / r['limit_us']:.3f})"
        errors = f"error {r['error']:.2e}/{r['eager_error']:.2e}"
        lines.append(" ".join([where, ratio, *peers, errors, r["variant"]]))
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--compile-seconds", type=float, default=600, help="after these, rows have no torch.compile peers"
    )
    arguments = parser.parse_args()
    # One lambda is compiled for every activation and shape.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    library, started, rows = Library(arguments.library), time.monotonic(), []
    plan = [(s, d, c) for c in (False, True) for d in (torch.bfloat16, torch.float16) for s in SIX + SMALL + OTHER]
    for shape, dtype, cold in plan:
        peers = dtype is torch.bfloat16 and not cold and time.monotonic() - started < arguments.compile_seconds
        modes = ("default", "max-autotune-no-cudagraphs") if peers else ()
        rows += measure(library, shape, dtype, modes, cold=cold)
        versions = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cublas": library.library.fuseconv_linear_cublas_version(),
        }
        arguments.out.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "versions": versions, "rows": rows}, indent=1) + "\n"
        )
    print(summary(rows))


if __name__ == "__main__":
    main()

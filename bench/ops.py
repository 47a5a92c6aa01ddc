"""Times the ops against eager, torch.compile, and what the machine allows; prints a table and writes JSON.

    python bench/ops.py bench/results/h200_ops.json --only linear_act --dtype bf16 --seconds 120

Rows of an existing file stay unless they are measured again, so a large table is made in slices. A row holds medians,
in microseconds a call: `us` ours; `limit_us` the bare matrix products of the case, or a copy of as many bytes;
`eager_us`, `compile_us` and `max_autotune_us` what a user of torch gets. All of a row's calls are made in turn, in one
process; `ratios` are the medians of each round's ratio to ours, `noise` is what the same call differs by from itself.
Every case is checked against float64 first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import record
import torch
from cases import DTYPES, Call, Case, Operands, cases
from clock import AGAIN, COLD_BYTES, COLD_SETS, microseconds, noise, ratio
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from fuseconv.numerics.tolerance import FLOOR, TOLERANCES

PEERS = {"eager": None, "compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}
"""Our own graphs take the place of those that a mode of torch.compile would make."""

KEY = ("op", "act", "backend", "dtype", "shape")
MEASURED = ("us", "limit_us", "eager_us", "compile_us", "max_autotune_us")


def bound(call: Call, operands: Operands, case: Case) -> Call:
    """Returns a call without arguments; of a case that learns, with the gradients."""
    if not case.learns:
        return lambda: call(*operands.tensors, *operands.rest)
    leaves = [tensor for tensor in operands.tensors if tensor is not None and tensor.requires_grad]
    with torch.no_grad():
        seed = torch.ones_like(case.eager(*operands.tensors, *operands.rest))

    def step() -> tuple[Tensor, ...]:
        result = call(*operands.tensors, *operands.rest)
        return result, *torch.autograd.grad(result, leaves, seed)

    return step


def check(case: Case, operands: Operands) -> float:
    """Returns ours' error against float64, relative to the reference's own; stops where the tolerance table does.

    Raises:
        AssertionError: ours is farther from fp64 than the table allows.
    """
    plain = case.plain or case.eager

    def results(call: Call, given: Operands) -> list[Tensor]:
        return [value for value in pytree.tree_leaves(bound(call, given, case)()) if value.is_floating_point()]

    def widened(value: Any) -> Any:
        wide = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().double().requires_grad_(value.requires_grad) if wide else value

    wide = Operands(tuple(map(widened, operands.tensors)), operands.rest)
    dtype = DTYPES[case.dtype]
    worst = 0.0
    for ours, theirs, exact in zip(
        results(case.ours, operands), results(plain, operands), results(plain, wide), strict=True
    ):
        error, own = ((value.double() - exact).square().mean().sqrt().item() for value in (ours, theirs))
        size = exact.square().mean().sqrt().item()
        allowed = TOLERANCES[dtype].factor * own + FLOOR * torch.finfo(dtype).eps * size
        assert error <= allowed, f"{case.op} {case.act} {case.dtype} {case.shape}: error {error}, at most {allowed}"
        worst = max(worst, error / own if own else float(error > 0))
    return worst


def moved(case: Case, operands: Operands) -> int:
    """Returns the bytes that the operands and the results of a forward have."""
    with torch.no_grad():
        results = pytree.tree_leaves(case.ours(*operands.tensors, *operands.rest))
    return sum(tensor.nbytes for tensor in (*operands.tensors, *results) if isinstance(tensor, Tensor))


def cold_sets(size: int) -> int:
    """Returns how many sets of operands of so many bytes a call has to take in turn to find none in a cache."""
    return max(COLD_SETS, -(-COLD_BYTES // size))


def limit(case: Case, device: str, size: int) -> list[Call]:
    """Returns calls that do the least there is to do: the products alone, or a copy of as many bytes."""
    if not case.products:
        copies = cold_sets(size) if device == "cuda" else 1
        # By a kernel: the driver's own copy takes half as long again for some sizes and places.
        pairs = [(torch.randn(size // 8, device=device), torch.empty(size // 8, device=device)) for _ in range(copies)]
        return [lambda pair=pair: torch.neg(pair[0], out=pair[1]) for pair in pairs]

    def product(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
        return (
            torch.randn(m, k, device=device).to(DTYPES[case.dtype]),
            torch.randn(n, k, device=device).to(DTYPES[case.dtype]),
        )

    one = sum(m * k + n * k for m, n, k in case.products) * DTYPES[case.dtype].itemsize
    sets = [[product(*sizes) for sizes in case.products] for _ in range(cold_sets(one) if device == "cuda" else 1)]
    return [lambda pairs=pairs: [torch.mm(x, w.t()) for x, w in pairs] for pairs in sets]


def measure(case: Case, device: str, peers: Sequence[str], backend: str, rounds: int) -> dict[str, Any]:
    """Returns the row of a case."""
    operands = case.draw(device)
    worst, size = check(case, operands), moved(case, operands)
    sets = [operands, *(case.draw(device) for _ in range(1, cold_sets(size) if device == "cuda" else 1))]
    calls: dict[str, list[Call]] = {"us": [bound(case.ours, one, case) for one in sets]}
    calls[AGAIN] = calls["us"]
    calls["limit_us"] = limit(case, device, size)
    for peer in peers:
        mode = PEERS[peer]
        call = case.eager if mode is None else torch.compile(case.eager, mode=mode, dynamic=False, fullgraph=True)
        calls[f"{peer}_us"] = [bound(call, one, case) for one in sets]
    times = microseconds(calls, device, rounds)
    return {
        "op": case.op,
        "act": case.act,
        "backend": backend if case.op == "linear_act" else "",
        "dtype": case.dtype,
        "shape": list(case.shape),
        **{name: statistics.median(times[name]) if name in times else None for name in MEASURED},
        "bytes": size,
        "flops": case.flops,
        "ratios": {name.removesuffix("_us"): ratio(times, name, "us") for name in MEASURED[1:] if name in times},
        "noise": noise(times, "us"),
        "error_ratio": worst,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Returns the rows as a person reads them: how many times faster than each peer, and how near to the limit."""
    made = Table("op", "act", "dtype", "shape", box=None)
    for name in ("us", "% of limit", "eager", "compile", "max-autotune", "noise"):
        made.add_column(name, justify="right")
    for row in rows:
        ratios = row["ratios"]
        faster = [f"{ratios[peer]:.2f}x" if peer in ratios else "" for peer in PEERS]
        name = row["op"] + (f" ({row['backend']})" if row["backend"] not in ("", "auto") else "")
        shape = ",".join(map(str, row["shape"]))
        made.add_row(
            name,
            row["act"],
            row["dtype"],
            shape,
            f"{row['us']:.2f}",
            f"{100 * ratios['limit']:.0f}",
            *faster,
            f"{100 * row['noise']:.1f} %",
        )
    return made


def wanted(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yields the cases asked for."""
    for case in cases(arguments.device, arguments.backend):
        named = not arguments.only or case.op in arguments.only
        if (
            named
            and (not arguments.dtype or case.dtype in arguments.dtype)
            and (not arguments.act or case.act in arguments.act)
            and (not arguments.shape or "x".join(map(str, case.shape)) in arguments.shape)
        ):
            yield case


def main() -> None:
    """Measures, prints and writes, after every row: a run that is stopped keeps what it has."""
    os.environ.setdefault("FUSECONV_TIMING", "on")  # as in a bundle, whose tactics are measured
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="names of ops")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[])
    parser.add_argument("--act", nargs="+", default=[])
    parser.add_argument("--shape", nargs="+", default=[], help="as 128x3072x768")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--backend", default="auto", help="of linear_act")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no case but the first is begun after these"
    )
    arguments = parser.parse_args()
    # One function is compiled for every dtype, activation and shape.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    start, rows, left = time.monotonic(), [], 0
    for case in wanted(arguments):
        if rows and time.monotonic() - start > arguments.seconds:
            left += 1
            continue
        with torch.set_grad_enabled(case.learns):
            rows.append(measure(case, arguments.device, arguments.peers, arguments.backend, arguments.rounds))
        record.write(arguments.out, rows, record.machine(arguments.device), KEY)
    Console(width=140).print(table(rows))
    if left:
        print(f"{left} cases were left: out of time")


if __name__ == "__main__":
    main()

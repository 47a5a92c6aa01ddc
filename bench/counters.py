"""Counts what the kernels of an op do, and those that torch.compile makes of its reference, by Nsight Compute.

    python bench/counters.py bench/results/h200_ncu.json --only rms_norm --dtype f32 --shape 16384x4096

Each call is made once, alone, with nothing in the caches, at the clocks that the GPU has. A row is a kernel:
`us`, what part of the cycles DRAM (`dram_percent`), the schedulers (`issue_percent`) and the busiest pipe (`pipe`) were
at work, `instructions` of a thread for each element of the largest operand or result, and `stall`, what warps waited
for most, in warps a scheduler had waiting on average for each instruction that it issued.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import torch
from cases import DTYPES, Case
from ops import PEERS, bound, wanted
from torch.utils import _pytree as pytree

KEY = ("op", "act", "dtype", "shape", "by", "kernel")
RANGE = re.compile(r"counted (\d+)")
PIPES = ("alu", "fma", "fp64", "xu", "lsu")
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "wait",
    "math_pipe_throttle",
    "lg_throttle",
    "mio_throttle",
    "not_selected",
    "no_instruction",
    "drain",
    "imc_miss",
)
METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
    "launch__block_size": "block",
    "smsp__inst_executed.sum": "instructions",
    **{f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_active": f"pipe {pipe}" for pipe in PIPES},
    **{f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": f"stall {why}" for why in STALLS},
}
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


def calls(arguments: argparse.Namespace) -> Iterator[tuple[Case, str]]:
    """Yields what is counted, in the order in which `make_calls` makes it: a case, and by whom."""
    for case in wanted(arguments):
        for by in ("ours", *arguments.peers):
            yield case, by


def make_calls(arguments: argparse.Namespace) -> None:
    """Makes each call once in an NVTX range with its number, and prints the elements of each."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    for number, (case, by) in enumerate(calls(arguments)):
        operands = case.draw("cuda")
        mode = PEERS.get(by)
        call = case.ours if by == "ours" else case.eager
        if mode is not None:
            call = torch.compile(call, mode=mode, dynamic=False, fullgraph=True)
        step = bound(call, operands, case)
        with torch.set_grad_enabled(case.learns):
            results = [step() for _ in range(3)][-1]
            torch.cuda.synchronize()
            with torch.cuda.nvtx.range(f"counted {number}"):
                step()
            torch.cuda.synchronize()
        sizes = [one.numel() for one in pytree.tree_leaves((operands.tensors, results)) if one is not None]
        print(f"counted {number} of {max(sizes)} elements", flush=True)


def counted(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs this file under ncu and returns a row a kernel.

    Raises:
        SystemExit: ncu could not count.
    """
    inside = [sys.executable, __file__, *sys.argv[1:], "--inside"]
    command = [
        "ncu",
        "--clock-control",
        "none",
        "--nvtx",
        "--nvtx-include",
        "regex:counted.*/",
        "--csv",
        "--page",
        "raw",
    ]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, "--metrics", ",".join(METRICS), *inside], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if done.returncode or begin is None:
        raise SystemExit(f"ncu ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    elements = {int(a): int(b) for a, b in re.findall(r"counted (\d+) of (\d+) elements", done.stdout)}
    units, *kernels = csv.DictReader(lines[begin:])
    made = list(calls(arguments))
    rows = []
    for kernel in kernels:
        number = next(int(found[1]) for cell in kernel.values() if (found := RANGE.search(cell or "")))
        rows.append(row(*made[number], elements[number], kernel, units))
    return rows


def row(case: Case, by: str, elements: int, kernel: dict[str, str], units: dict[str, str]) -> dict[str, Any]:
    """Returns the row of one kernel of a call."""
    figures = {name: float(kernel[metric].replace(",", "")) for metric, name in METRICS.items()}
    figures["us"] *= MICROSECONDS[units["gpu__time_duration.sum"]]
    figures["instructions"] *= 32 / elements
    busiest = {
        kind: max((value, name) for name, value in figures.items() if name.startswith(kind))
        for kind in ("pipe", "stall")
    }
    return {
        "op": case.op,
        "act": case.act,
        "dtype": case.dtype,
        "shape": list(case.shape),
        "by": by,
        "kernel": kernel_name(kernel["Kernel Name"]),
        **{name: rounded(value) for name, value in figures.items() if " " not in name},
        **{kind: f"{name.split()[1]} {value:.2f}" for kind, (value, name) in busiest.items()},
    }


def kernel_name(signature: str) -> str:
    """Returns the name of a kernel without what it returns, its namespaces, template arguments and parameters."""
    bare = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", signature).removeprefix("void ")
    return re.split(r"[<(]", bare)[0].split("::")[-1]


def rounded(value: float) -> float:
    """Returns a figure with four digits."""
    return float(f"{value:.4g}")


def main() -> None:
    """Counts, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="names of ops")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[])
    parser.add_argument("--act", nargs="+", default=[])
    parser.add_argument("--shape", nargs="+", default=[], help="as 16384x4096")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["compile"])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device, arguments.backend = "cuda", "auto"
    if arguments.inside:
        make_calls(arguments)
        return
    rows = counted(arguments)
    for one in rows:
        print(json.dumps(one))
    record.write(arguments.out, rows, record.machine("cuda"), KEY)


if __name__ == "__main__":
    main()

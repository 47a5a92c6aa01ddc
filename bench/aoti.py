"""What settings of AOTInductor cost and gain: a call of an op in a package, and the making of a package.

    python bench/aoti.py bench/results/cpu_aoti_shims.json

docs/adr/0009-c-shims.md draws its conclusions from the file.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from apart import apart
from artifact import converted
from clock import AGAIN, in_turn, noise, ratio
from record import Row, machine, write
from torch import Tensor
from zoo import ENTRIES

from fuseconv import ops
from fuseconv.ops import library
from fuseconv.targets import c_shims

MODEL, DTYPE = "bert-base:1x128", "f16"

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "mul_tanh": lambda x: ops.mul_tanh(x, x),
    "linear_act": lambda x: ops.linear_act(x, x, None, None, "relu"),
    "add_layer_norm": lambda x: ops.add_layer_norm(x, x, None, None, 1e-5, True)[0],
}
PROXY, SHIM, SHIM_O0 = "proxy executor", "C shim", "C shim, wrapper at O0"

SETTINGS: dict[str, dict[str, Any]] = {
    "torch's": {},
    "vector instructions not tried": {"cpp.vec_isa_ok": True},
    "wrapper at O0": {"aot_inductor.compile_wrapper_opt_level": "O0"},
    "headers not precompiled": {"aot_inductor.precompile_headers": False},
    "weights beside the library": {
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "binary_blob",
    },
}
"""How a package of the model is made, beside calling our ops by their C shims."""


class Repeated(torch.nn.Module):
    """An op, many times, each on the result of the one before."""

    def __init__(self, op: Callable[[Tensor], Tensor], calls: int) -> None:
        super().__init__()
        self.op, self.calls = op, calls

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Returns the op of the op of ... of x."""
        for _ in range(self.calls):
            x = self.op(x)
        return (x,)


def call_row(op: str, device: str, calls: int, rounds: int, scratch: Path) -> Row:
    """Times the calls of one op on 4 x 4 elements, on the host: on a GPU the kernels are shorter than their launches.

    Returns:
        The median microseconds of one call for each way to make it, their ratios to ours, and the noise.
    """
    x = torch.randn(4, 4, device=device)
    exported = torch.export.export(Repeated(OPS[op], calls), (x,))
    ours = c_shims.inductor_configs(exported, device)
    ways = {PROXY: {}, SHIM: ours, SHIM_O0: {**ours, **SETTINGS["wrapper at O0"]}}
    packages = {}
    for way, settings in ways.items():
        path = str(scratch / f"{op} {way}.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=settings)
        packages[way] = torch._inductor.aoti_load_package(path, run_single_threaded=True)
    packages[AGAIN] = packages[SHIM]
    results = [package(x)[0] for package in packages.values()]
    assert all(torch.equal(result, results[0]) for result in results)

    def sampler(package: Callable[[Tensor], Any]) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter()
            package(x)
            taken = time.perf_counter() - start
            if device == "cuda":
                torch.cuda.synchronize()
            return taken / calls * 1e6

        return sample

    times = in_turn({way: sampler(package) for way, package in packages.items()}, rounds)
    return {
        "what": "call",
        "name": op,
        "us": {way: round(statistics.median(times[way]), 3) for way in ways},
        "ratio": {way: round(ratio(times, way, SHIM), 3) for way in ways if way != SHIM},
        "noise": round(noise(times, SHIM), 4),
    }


def made(source: Path, package: Path, device: str, settings: dict[str, Any]) -> Row:
    """Makes a package in this process, whose cache is empty, and says what it took; the time is the processor's."""
    exported = torch.export.load(source)
    chosen = {**c_shims.inductor_configs(exported, device), **settings}
    before, start = _processor_seconds(), time.monotonic()
    torch._inductor.aoti_compile_and_package(exported, package_path=str(package), inductor_configs=chosen)
    return {
        "processor_s": round(_processor_seconds() - before, 2),
        "s": round(time.monotonic() - start, 2),
        "largest_child_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "package_mb": round(package.stat().st_size / 1e6, 1),
    }


def loaded(package: Path) -> Row:
    """Loads a package in this process and says what it took."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)  # type: ignore[attr-defined]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"load_s": round(time.monotonic() - start, 3), "load_mb": memory >> 10}


def _processor_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def package_rows(device: str, rounds: int, scratch: Path) -> list[Row]:
    """Makes and loads the model's package with each of the settings, in turn, each in a process of its own.

    A first round is not counted: it leaves the precompiled headers, which no other cache of Inductor's has.
    """
    entry = next(entry for entry in ENTRIES if entry.name == MODEL)
    arguments = argparse.Namespace(layers=None, targets=("export",), device=device, tune="none")
    bundle = converted(entry, DTYPE, arguments, scratch).bundle
    source, package = bundle / "export" / "model.pt2", scratch / "package.pt2"
    taken: dict[str, list[Row]] = {name: [] for name in SETTINGS}
    for number in range(rounds + 1):
        for name, settings in SETTINGS.items():
            with tempfile.TemporaryDirectory(dir=scratch) as cache:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
                row = {**apart(made, source, package, device, settings), **apart(loaded, package)}
            if number:
                taken[name].append(row)
    return [
        {"what": "package", "name": name, **{key: statistics.median(row[key] for row in rows) for key in rows[0]}}
        for name, rows in taken.items()
    ]


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--calls", type=int, default=100, help="of an op, in a package")
    parser.add_argument("--call-rounds", type=int, default=300)
    parser.add_argument("--package-rounds", type=int, default=3, help="0 leaves the packages out")
    chosen = parser.parse_args()
    os.environ["LIBRARY_PATH"] = str(library.FOLDER)  # the linker's
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        scratch = Path(folder)
        rows = [call_row(op, chosen.device, chosen.calls, chosen.call_rounds, scratch) for op in OPS]
        if chosen.package_rounds:
            rows += package_rows(chosen.device, chosen.package_rounds, scratch)
    write(chosen.output, rows, machine(chosen.device), ("what", "name"))


if __name__ == "__main__":
    main()

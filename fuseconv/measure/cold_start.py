"""Measures the cold start of one target in a new process: the time and memory until the first result."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fuseconv.measure.separate import measured
from fuseconv.processes.forked import TIME_LIMIT
from fuseconv.runtime.model import load

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class ColdStart:
    """The cost of a first call.

    Attributes:
        seconds: the time from the start of the process to the loaded model, including Python, torch and the bundle.
        load_seconds: the part of `seconds` spent in `load`: verifying checksums, loading libraries and the artifact.
        first_call_ms: the duration of the first call in milliseconds.
        memory: the increase of the process's peak memory during loading and the first call, in bytes. None if the
            operating system does not report the peak memory.
        device_memory: the GPU memory in use after the first call, in bytes. None on a CPU.
    """

    seconds: float
    load_seconds: float
    first_call_ms: float
    memory: int | None
    device_memory: int | None


def cold_start(bundle: Path, target: str, inputs: tuple[torch.Tensor, ...], seconds: float = TIME_LIMIT) -> ColdStart:
    """Loads a target in a new process, calls it once, and returns the times and the memory.

    Args:
        bundle: the folder of the bundle.
        target: the name of the target to load.
        inputs: one tensor per input of the contract.
        seconds: the time limit in seconds.

    Raises:
        UpstreamError: the new process failed, or did not end within `seconds`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch, "inputs.pt")
        torch.save([tensor.cpu() for tensor in inputs], given)
        request = {"bundle": str(bundle.absolute()), "target": target, "inputs": str(given), "started": time.time()}
        what = f"load and call the target {target}"
        found = measured(
            "fuseconv.measure.cold_start", request, what=what, where=str(bundle), cold=True, seconds=seconds
        )
        return ColdStart(**found)


def main(asked: str, told: str) -> None:
    """Measures a cold start in this process, and writes the result to a file.

    Args:
        asked: the path of the JSON request. It specifies the bundle, the target, the file with the inputs, and the
            start time of the process in seconds since the epoch.
        told: the path to which the result is written as JSON.
    """
    request = json.loads(Path(asked).read_text())
    inputs = torch.load(request["inputs"], weights_only=True)
    before, begin = _peak(), time.time()
    model = load(request["bundle"], request["target"], cuda_graphs=False, warm_seconds=0)
    loaded = time.time()
    inputs = [tensor.to(model.device) for tensor in inputs]
    start = time.perf_counter()
    model(*inputs)
    on_gpu = model.device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    first_call_ms = (time.perf_counter() - start) * 1e3
    after = _peak()
    found = ColdStart(
        loaded - request["started"],
        loaded - begin,
        first_call_ms,
        None if before is None or after is None else after - before,
        _device_memory() if on_gpu else None,
    )
    Path(told).write_text(json.dumps(asdict(found)))


def _device_memory() -> int:
    """Returns the GPU memory in use, in bytes: weights, library workspaces, CUDA contexts and other processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def _peak() -> int | None:
    """Returns this process's peak memory in bytes, or None without /proc.

    getrusage is not used, because it includes the parent's memory from before exec.
    """
    if not _STATUS.exists():
        return None
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])

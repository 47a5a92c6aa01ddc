"""Verifies a bundle in a separate process, which contains no code of rules or models and none of the caller's state."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.report import OutputRow
from fuseconv.processes import forked as processes
from fuseconv.processes.forked import TIME_LIMIT, Forked, forked

_LOG_LINES = 5


@dataclass(frozen=True)
class Verified:
    """The result of one target: either its rows or an error.

    Attributes:
        rows: one row per case and output.
        error: why the target did not load, crashed, or exceeded the time limit. None if the target ran.
    """

    rows: tuple[OutputRow, ...] = ()
    error: FuseconvError | None = None


def prepare() -> None:
    """Tells the server process to import the modules that verification requires. Returns immediately."""
    processes.prepare(*_beforehand())


def verify(
    bundle: Path,
    targets: Sequence[str],
    *,
    reference: Path | None = None,
    cases: Sequence[str] | None = None,
    hashed: bool = False,
) -> dict[str, Verified]:
    """Runs targets of a bundle in separate processes and compares each output with the reference.

    Args:
        bundle: the folder of the bundle.
        targets: the names of the targets to run.
        reference: the path of the file with the reference cases. None for the bundle's own file.
        cases: the names of the cases to run. None for all cases.
        hashed: whether the caller has already verified the hashes of the bundle's files. They are then not verified
            again.

    Returns:
        The result of each target, by the name of the target.

    Raises:
        RefusedError: the bundle is damaged.
        UpstreamError: the process cannot be started.
    """
    with tempfile.TemporaryDirectory() as scratch:
        log, left = Path(scratch, "log"), list(targets)
        found: dict[str, Verified] = {}
        while left:
            request = {
                "bundle": str(bundle.absolute()),
                "targets": left,
                "reference": None if reference is None else str(reference),
                "cases": None if cases is None else list(cases),
                "hashed": hashed,
                "log": str(log),
                "threads": torch.get_num_threads(),
            }
            found |= _ask(request, log)
            left = [target for target in left if target not in found]
        return found


def _ask(request: dict[str, Any], log: Path) -> dict[str, Verified]:
    """Runs one process, and returns its results up to the first target that crashes or exceeds the time limit."""
    found: dict[str, Verified] = {}
    at = ""
    with forked("fuseconv.parity.child", json.dumps(request), before=_beforehand()) as process:
        try:
            for answer in _answers(process):
                match answer:
                    case {"target": target, "rows": rows}:
                        found[target] = Verified(tuple(_row(row) for row in rows))
                    case {"target": target, "error": error}:
                        found[target] = Verified(error=_error(error))
                    case {"error": error}:
                        raise _error(error)
                    case {"target": target}:
                        at = target
            status = process.wait()
        except TimeoutError:
            what = f"the target {at} did not respond within {TIME_LIMIT:.0f} s"
            return {**found, at or request["targets"][0]: Verified(error=UpstreamError(what, where=request["bundle"]))}
    if at and at not in found:
        found[at] = Verified(error=_crash(at, status, log))
    if not found:
        raise UpstreamError(f"the verification process exited before it started: {_said(log)}", where="verification")
    return found


def _answers(process: Forked) -> Iterator[dict[str, Any]]:
    """Yields the lines that the process writes, parsed from JSON, until the process closes its stdout.

    Raises:
        TimeoutError: the process writes no line within `TIME_LIMIT`, in which it loads, runs and compares a target.
    """
    pending, end = b"", time.monotonic() + TIME_LIMIT
    while read := process.read(end - time.monotonic()):
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            end = time.monotonic() + TIME_LIMIT
            yield json.loads(line)
    if read is None:
        raise TimeoutError


def _beforehand() -> list[str]:
    """Returns the names of modules that targets import. The server imports them once for all processes.

    The target export imports `torch.export._trace`, and by it networkx, which takes most of the time of a small bundle.
    """
    names = (
        "onnx",
        "onnxruntime",
        "safetensors.torch",
        "torch._dynamo",
        "torch._export.serde.serialize",
        "torch.export._trace",
        "torch.export.pt2_archive._package",
        "torch._subclasses.schema_check_mode",
        "torch.fx.experimental.validator",
    )
    return ["fuseconv.parity.child", *(name for name in names if find_spec(name.partition(".")[0]) is not None)]


def _row(fields: dict[str, Any]) -> OutputRow:
    return OutputRow(**{**fields, "row": Row(**fields["row"])})


def _error(fields: dict[str, str]) -> FuseconvError:
    kinds = {kind.code: kind for kind in FuseconvError.__subclasses__()}
    return kinds.get(fields["code"], UpstreamError)(fields["what"], where=fields["where"], fix=fields["fix"])


def _crash(target: str, status: int, log: Path) -> UpstreamError:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited the process with status {status}"
    return UpstreamError(
        f"the target {target} {how} when it was run: {_said(log)}",
        where=f"the target {target}",
        fix=f"leave the target {target} out",
    )


def _said(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "; ".join(line.strip() for line in lines[-_LOG_LINES:]) or "no output"

"""The process that verifies bundles: `python -m fuseconv.parity.child`. It loads bundles and no other code.

It imports everything once and forks for every request, which is a line of JSON. The fork runs the targets and writes a
line per target. If a target crashes, the fork dies, and the last line says how it ended.
"""

from __future__ import annotations

import json
import os
import resource
import select
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import open_bundle, read_manifest
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.parity import verification
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of

IDLE = 300
"""The number of seconds without a request after which the process exits."""

LOG_WORDS = 60
"""The number of words of earlier output that are appended to an error that refers to it."""

BEFOREHAND = ("onnx", "onnxruntime", "safetensors.torch", "torch._dynamo", "torch._export.serde.serialize")
"""The modules that the targets import, loaded once instead of in each fork."""

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serves requests until the input ends."""
    for name in BEFOREHAND:
        if find_spec(name.partition(".")[0]) is not None:
            import_module(name)
    # Output of artifacts and libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    pending = b""
    while True:
        if not select.select([0], [], [], IDLE)[0] or not (read := os.read(0, 1 << 16)):
            return
        *requests, pending = (pending + read).split(b"\n")
        for request in requests:
            _fork(json.loads(request), answers)


def _fork(request: dict[str, Any], answers: Any) -> None:
    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    child = os.fork()
    if child == 0:
        try:
            _serve(request, tell)
        except FuseconvError as error:
            tell({"error": _described(error)})
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    tell({"ended": os.waitstatus_to_exitcode(status)})


def _serve(request: dict[str, Any], tell: Tell) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    torch.set_num_threads(request["threads"])
    folder = Path(request["bundle"])
    manifest = read_manifest(folder) if request["hashed"] else open_bundle(folder)
    path = Path(request["reference"]) if request["reference"] else folder / REFERENCE
    references = tried_of(read_reference(path, manifest.contract))
    if request["cases"] is not None:
        references = [reference for reference in references if reference.case.name in request["cases"]]
    for target in request["targets"]:
        tell({"target": target})
        try:
            rows = verification.verify_target(folder, manifest, target, references)
        except FuseconvError as error:
            tell({"target": target, "error": _described(error, request["log"])})
        except Exception as error:  # noqa: BLE001 - what a target raises here is what it raises for its users
            line = next(iter(str(error).splitlines()), "")
            failed = UpstreamError(f"the target {target} failed: {type(error).__name__}: {line}", where=str(folder))
            tell({"target": target, "error": _described(failed)})
        else:
            tell({"target": target, "rows": [asdict(row) for row in rows]})


def _described(error: FuseconvError, log: str = "") -> dict[str, str]:
    """Returns an error as plain values, with the end of the earlier output if the error refers to it."""
    lines = Path(log).read_text(errors="replace").split() if log and "above" in error.what else []
    said = f"; earlier output: {' '.join(lines[-LOG_WORDS:])}" if lines else ""
    return {"code": error.code, "what": f"{error.what.strip()}{said}", "where": error.where, "fix": error.fix}


if __name__ == "__main__":
    main()

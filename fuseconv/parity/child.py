"""Verifies one bundle in a separate process, which loads no code other than the bundle's.

The request is JSON. For each target, the process writes one line with the target's name before it runs the target, and
one line with the result afterwards. If a target crashes, the last line is therefore the name of this target.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import open_bundle, read_manifest
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.parity import verification
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of

LOG_WORDS = 60
"""The number of words of earlier output that are appended to an error message which refers to that output."""

Tell = Callable[[dict[str, Any]], None]


def main(text: str) -> None:
    """Verifies a bundle, and writes the results to stdout, one line of JSON each.

    Args:
        text: the request as JSON. `process.verify` writes it.
    """
    request: dict[str, Any] = json.loads(text)
    answers = os.fdopen(os.dup(1), "w")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):  # the output of artifacts and libraries must not mix with the results
        os.dup2(log, number)
    torch.set_num_threads(request["threads"])

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        _serve(request, tell)
    except FuseconvError as error:
        tell({"error": _described(error)})


def _serve(request: dict[str, Any], tell: Tell) -> None:
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
        except Exception as error:  # noqa: BLE001 - a target that raises here also raises for users
            line = next(iter(str(error).splitlines()), "")
            failed = UpstreamError(f"the target {target} failed: {type(error).__name__}: {line}", where=str(folder))
            tell({"target": target, "error": _described(failed)})
        else:
            tell({"target": target, "rows": [asdict(row) for row in rows]})


def _described(error: FuseconvError, log: str = "") -> dict[str, str]:
    """Returns an error as JSON-serializable values. If the message refers to earlier output, appends that output."""
    lines = Path(log).read_text(errors="replace").split() if log and "above" in error.what else []
    said = f"; earlier output: {' '.join(lines[-LOG_WORDS:])}" if lines else ""
    return {"code": error.code, "what": f"{error.what.strip()}{said}", "where": error.where, "fix": error.fix}

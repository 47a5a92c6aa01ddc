"""Runs a module of fuseconv in a separate process, which does not inherit this process's state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuseconv.errors import UpstreamError
from fuseconv.processes.forked import TIME_LIMIT, forked

FIX = "free memory that other processes use and try again, or leave the target out"


def measured(
    module: str,
    request: dict[str, Any],
    *,
    what: str,
    where: str,
    fix: str = FIX,
    cold: bool = False,
    seconds: float = TIME_LIMIT,
) -> Any:
    """Calls `module.main(REQUEST, RESULT)` in a new process, and returns the content of RESULT.

    REQUEST and RESULT are paths of JSON files.

    Args:
        module: the dotted name of the module whose `main` is called.
        request: the content of REQUEST.
        what: the task of the process, as a verb phrase for the error message.
        where: the path of the bundle or model, for the error message.
        fix: what the user can do about a failure, for the error message.
        cold: whether to start a new Python process, so that importing torch is measured too, instead of a fork of the
            server, which has already imported torch.
        seconds: the time limit of the process in seconds. It is then killed.

    Raises:
        UpstreamError: the new process failed, or did not end within `seconds`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        asked, told = Path(scratch, "request.json"), Path(scratch, "result.json")
        asked.write_text(json.dumps(request))
        with tempfile.TemporaryFile() as said:
            run = _new if cold else _forked
            try:
                status = run(module, str(asked), str(told), scratch, said.fileno(), seconds)
            except (TimeoutError, subprocess.TimeoutExpired):
                raise UpstreamError(
                    f"a new process did not {what} within {seconds:g} s", where=where, fix=fix
                ) from None
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
        if status != 0 or not told.is_file():
            last = "\n".join(lines[-3:])
            raise UpstreamError(f"a new process failed to {what} (exit {status}): {last}", where=where, fix=fix)
        return json.loads(told.read_text())


def _forked(module: str, asked: str, told: str, folder: str, said: int, seconds: float) -> int:
    with forked(module, asked, told, folder=folder, stdout=said, stderr=said) as process:
        return process.wait(seconds)


def _new(module: str, asked: str, told: str, folder: str, said: int, seconds: float) -> int:
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(  # noqa: S603 - our own module under the running interpreter
        [sys.executable, "-P", "-W", "ignore", "-m", module, asked, told],
        env={**os.environ, "PYTHONPATH": search_path},
        cwd=folder,
        stdout=said,
        stderr=said,
        check=False,
        timeout=seconds,
    ).returncode

"""Runs a module of fuseconv in a new process, which has nothing of this one, and returns what it measured as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuseconv.errors import UpstreamError

FIX = "free memory used by other processes and run it again, or leave the target out"


def measured(module: str, request: dict[str, Any], *, what: str, where: str, fix: str = FIX) -> Any:
    """Runs `python -m module REQUEST RESULT` and returns the content of RESULT. Both are paths of JSON files.

    Args:
        module: the module. It is called with the two paths.
        request: the content of REQUEST.
        what: what the process does, for the error.
        where: the bundle, for the error.
        fix: what the user can do, for the error.

    Raises:
        UpstreamError: the process failed.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as scratch:
        asked, told = Path(scratch, "request.json"), Path(scratch, "result.json")
        asked.write_text(json.dumps(request))
        done = subprocess.run(  # noqa: S603 - our own module under the running interpreter
            [sys.executable, "-P", "-W", "ignore", "-m", module, str(asked), str(told)],
            env={**os.environ, "PYTHONPATH": search_path},
            cwd=scratch,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0 or not told.is_file():
            last = "\n".join(done.stderr.splitlines()[-3:])
            raise UpstreamError(
                f"a new process failed to {what} (exit {done.returncode}): {last}", where=where, fix=fix
            )
        return json.loads(told.read_text())

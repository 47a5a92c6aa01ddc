"""Code run by `python -c`, in a fork of the process that has imported torch: a second less than a new interpreter."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from fuseconv.processes.forked import forked

TESTS = str(Path(__file__).resolve().parents[1])
IMPORTED = ("torch", "fuseconv.pipeline.convert", "fuseconv.commands.results")


def run(code: str, folder: Path, environment: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Runs code as the main program of a process in a folder; returns its exit status and what it printed."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as error,
        forked(
            "support.warm_python",
            code,
            before=IMPORTED,
            path=[TESTS],
            folder=str(folder),
            environment=environment,
            stdout=out.fileno(),
            stderr=error.fileno(),
        ) as process,
    ):
        status = process.wait()
        out.seek(0)
        error.seek(0)
        return CompletedProcess(code, status, out.read(), error.read())


def main(code: str) -> None:
    """Runs the code as `python -c` does."""
    sys.argv, sys.path[0:0] = ["-c"], [""]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})

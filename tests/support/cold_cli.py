"""`fuseconv` in forks of a process that has not imported torch, for tests that it is not imported.

A new interpreter would import click, rich and pydantic again for each call, which takes most of its time.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support import ROOT

TORCH = 100
"""Added to the exit status of a command that has imported torch."""


class Ended(NamedTuple):
    """What a command returned and printed, and whether it has imported torch."""

    status: int
    torch: bool
    stdout: str
    stderr: str


def run(words: Sequence[str], folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a command in a folder, in this environment if no other is given."""
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as said:
        paths = [str(Path(said, name)) for name in ("out", "err")]
        call = [list(words), str(folder), dict(os.environ if environment is None else environment), paths]
        server.stdin.write(json.dumps(call) + "\n")
        server.stdin.flush()
        ended = server.stdout.readline()
        assert ended, "the process that forks has ended"
        out, err = (Path(path).read_text() for path in paths)
    status = int(ended)
    return Ended(status % TORCH, status >= TORCH, out, err)


@cache
def _server(_: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    return server


def serve() -> None:
    """Forks for each line of stdin, and prints the exit status of each fork."""
    import fuseconv.bundle.manifest
    import fuseconv.cli  # noqa: F401

    assert "torch" not in sys.modules
    for line in sys.stdin:
        words, folder, environment, paths = json.loads(line)
        if not (child := os.fork()):
            os._exit(_called(words, folder, environment, paths))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _called(words: list[str], folder: str, environment: dict[str, str], paths: list[str]) -> int:
    from fuseconv import cli

    for number, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fuseconv", *words]
    try:
        status = cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status + TORCH * ("torch" in sys.modules)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    serve()

"""Reads a TorchScript archive in a process of its own: on some damaged archives torch does not raise, but crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fuseconv.errors import UpstreamError
from fuseconv.untrusted.confinement import die_with_parent

SECONDS, BYTES_PER_SECOND = 90, 20 << 20
"""How long reading may take: to import torch, and as long as a slow disk needs for the file."""


def require_loads(path: Path) -> None:
    """Makes sure that torch reads an archive without crashing; that it raises is no matter here.

    Raises:
        UpstreamError: reading it ends the process, or takes far longer than it should.
    """
    seconds = SECONDS + path.stat().st_size // BYTES_PER_SECOND
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.sources.loads", str(path.absolute())],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        happened = f"takes longer than {seconds} s"
    else:
        if done.returncode >= 0:
            return
        happened = f"crashes ({signal.Signals(-done.returncode).name})"
    raise UpstreamError(
        f"torch {happened} when it reads the archive, which is probably damaged",
        where=str(path),
        fix="copy the file again, or save it again with torch.jit.save",
    )


def _main() -> None:
    import torch

    die_with_parent()
    script = torch.jit.load(sys.argv[1], map_location="cpu")  # type: ignore[no-untyped-call]
    str(script.graph)
    str(script.forward.schema)


if __name__ == "__main__":
    _main()

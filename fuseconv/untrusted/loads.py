"""Reads a TorchScript archive in a separate process, because torch crashes on some damaged archives.

The process imports torch and little else. `fuseconv.sources` would take a third longer to import.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fuseconv.errors import UpstreamError
from fuseconv.untrusted.confinement import die_with_parent

SHORT = 65
"""The exit status of the process for an archive with less data than it declares."""

FIX = "copy the file again, or save it again with torch.jit.save"

SECONDS, BYTES_PER_SECOND = 90, 20 << 20
"""The time limit for reading, in seconds: the import of torch, and the file from a slow disk."""


def require_loads(path: Path) -> None:
    """Checks that torch reads an archive without crashing. Exceptions are ignored here.

    Raises:
        UpstreamError: reading crashes, takes too long, or would go past the end of the data.
    """
    seconds = SECONDS + path.stat().st_size // BYTES_PER_SECOND
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.untrusted.loads", str(path.absolute())],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        happened = f"takes longer than {seconds} s"
    else:
        if done.returncode == SHORT:
            raise UpstreamError(f"the archive is damaged: {done.stderr.decode().strip()}", where=str(path), fix=FIX)
        if done.returncode >= 0:
            return
        happened = f"crashes ({signal.Signals(-done.returncode).name})"
    raise UpstreamError(
        f"torch {happened} when it reads the archive, which is probably damaged",
        where=str(path),
        fix=FIX,
    )


def _main() -> None:
    import torch

    from fuseconv.untrusted.records import short_record

    die_with_parent()
    script = torch.jit.load(sys.argv[1], map_location="cpu")  # type: ignore[no-untyped-call]
    str(script.graph)
    str(script.forward.schema)
    try:
        short = short_record(Path(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - torch has read it, and what is not understood here is not vouched for
        short = f"its tensors cannot be listed: {type(error).__name__}: {error}"
    if short:
        print(short, file=sys.stderr)
        raise SystemExit(SHORT)


if __name__ == "__main__":
    _main()

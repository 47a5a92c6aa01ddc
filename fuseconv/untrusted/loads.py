"""Reads a TorchScript archive in a separate process, because torch crashes on some damaged archives."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from fuseconv.errors import UpstreamError
from fuseconv.processes.forked import forked

FIX = "copy the file again, or save it again with torch.jit.save"

SECONDS, BYTES_PER_SECOND = 90, 20 << 20
"""The time limit for reading: the seconds to import torch, and the rate at which a slow disk reads the file."""


def require_loads(path: Path) -> None:
    """Checks that torch reads an archive without crashing. Ignores exceptions that torch raises.

    Raises:
        UpstreamError: reading crashes, takes too long, or would go past the end of the data.
    """
    seconds = SECONDS + path.stat().st_size // BYTES_PER_SECOND
    try:
        said, status = _read(path.absolute(), seconds)
    except TimeoutError:
        happened = f"takes longer than {seconds} s"
    else:
        if said:
            raise UpstreamError(f"the archive is damaged: {said}", where=str(path), fix=FIX)
        if status >= 0:
            return
        happened = f"crashes ({signal.Signals(-status).name})"
    raise UpstreamError(
        f"torch {happened} when it reads the archive, which is probably damaged",
        where=str(path),
        fix=FIX,
    )


def _read(path: Path, seconds: int) -> tuple[str, int]:
    """Reads an archive in a separate process, and returns the report on the archive and the exit status.

    Raises:
        TimeoutError: the process takes too long.
        UpstreamError: the process does not start.
    """
    end = time.monotonic() + seconds
    with forked("fuseconv.untrusted.loading", str(path), seconds=seconds) as process:
        said = b""
        while more := process.read(end - time.monotonic()):
            said += more
        if more is None:
            raise TimeoutError
        return said.decode(errors="replace"), process.wait()

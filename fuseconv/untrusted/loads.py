"""Tries to load a TorchScript archive in a separate process, because torch crashes on some damaged archives."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from fuseconv.errors import UpstreamError
from fuseconv.processes.forked import forked

FIX = "copy the file again, or save it again with torch.jit.save"

SECONDS, BYTES_PER_SECOND = 90, 20 << 20
"""The time limit for loading: a constant time in seconds in which torch is imported, plus the time to read the file at
the rate of a slow disk."""


def require_loads(path: Path) -> None:
    """Raises an error if torch would crash or hang when it loads a TorchScript archive.

    Ignores exceptions that torch raises, because loading the archive in this process raises them again.

    Args:
        path: the path of the archive.

    Raises:
        UpstreamError: torch crashes or exceeds the time limit when it loads the archive, or a record of the archive is
            shorter than its tensor.
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
    """Loads an archive in a separate process, and returns the text that the process writes and its exit status.

    The text describes the damage that loading.py found in the archive, and is empty if loading.py found none.

    Raises:
        TimeoutError: the process does not end within `seconds`.
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

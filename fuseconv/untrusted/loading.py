"""The process that reads TorchScript archives for `loads`: `python -m fuseconv.untrusted.loading`.

It imports torch once and forks for each archive. A request is a line of JSON, the path and the time limit. The answer
is the exit status of the fork, and what is wrong with an archive that torch reads. The process exits when its input
ends, or after a while without a request. It imports little: `fuseconv.sources` would take a third longer.
"""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import torch

from fuseconv.untrusted.confinement import die_with_parent
from fuseconv.untrusted.records import short_record

IDLE = 300
"""The number of seconds without a request after which the process exits."""


def main() -> None:
    """Serves requests until the input ends."""
    pending = b""
    while select.select([0], [], [], IDLE)[0] and (read := os.read(0, 1 << 16)):
        *requests, pending = (pending + read).split(b"\n")
        for request in requests:
            os.write(1, json.dumps(_forked(*json.loads(request))).encode() + b"\n")


def _forked(path: str, seconds: int) -> dict[str, object]:
    """Reads an archive in a fork. If the input ends meanwhile, nobody waits for the answer: both processes end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(seconds + 1)  # whoever asked is gone by then, or has ended this process
            _read(path, writing)
        finally:
            os._exit(0)
    os.close(writing)
    said = b""
    while True:
        ready = select.select([0, reading], [], [])[0]
        if 0 in ready:
            os.kill(child, signal.SIGKILL)
            raise SystemExit
        if not (more := os.read(reading, 1 << 16)):
            break
        said += more
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "said": said.decode(errors="replace")}


def _read(path: str, said: int) -> None:
    """Reads an archive, and writes what is wrong with its data. Exceptions of torch are not of interest."""
    die_with_parent()
    for number in (0, 1):  # what runs here must not write into the answers; stderr is /dev/null
        os.dup2(2, number)
    script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    str(script.graph)
    str(script.forward.schema)
    try:
        short = short_record(Path(path))
    except Exception as error:  # noqa: BLE001 - torch has read it, and what is not understood here is not vouched for
        short = f"its tensors cannot be listed: {type(error).__name__}: {error}"
    os.write(said, short.encode(errors="replace"))


if __name__ == "__main__":
    main()

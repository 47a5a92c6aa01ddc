"""Servers of one bundle for bench/serve_load.py: `fuseconv serve`, in one process and on Ray, and tritonserver."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MARK = "FUSECONV_BENCH"
"""An environment variable by which the processes of a server are known: each has the value of the server's start."""

START = 600
"""Seconds within which a server must be ready."""

PORT = 18441


@dataclass
class Server:
    """A server that is ready.

    Attributes:
        url: the address.
        mark: the value of `MARK` in its processes.
        replica: what the command lines of the processes that run the model begin with or contain.
        summary: the figures that it prints when it has ended.
    """

    url: str
    mark: str
    replica: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """Returns the processor time that its processes have taken so far."""
        return sum(map(_cpu_seconds, self._processes()))

    def replicas(self) -> list[int]:
        """Returns the ids of the processes that run the model; none if it has no replicas."""
        return [pid for pid in self._processes() if self.replica and self.replica in _read(pid, "cmdline")]

    def _processes(self) -> Iterator[int]:
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and f"{MARK}={self.mark}" in _read(int(folder.name), "environ").split("\0"):
                yield int(folder.name)


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def _cpu_seconds(pid: int) -> float:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0


@contextmanager
def _started(command: list[str], environment: Mapping[str, str], found: Callable[[str], str | None]) -> Iterator[Any]:
    """Runs a server until the context ends. Yields its process, its address and its mark once `found` sees an address.

    Args:
        command: the command of the server.
        environment: what to add to the environment.
        found: returns the address of a server that is ready, for what it has written to its log so far.
    """
    mark = uuid.uuid4().hex
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        subprocess.Popen(  # noqa: S603 - what is measured
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment, MARK: mark}
        ) as process,
    ):
        try:
            end = time.monotonic() + START
            while (url := found(Path(log.name).read_text())) is None:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"the server did not start: {Path(log.name).read_text()}")
                time.sleep(0.2)
            yield process, url, mark
        finally:
            process.send_signal(signal.SIGTERM)


def _url_in(text: str) -> str | None:
    match = re.search(r"http://[\d.]+:\d+", text)
    return match and match[0]


@contextmanager
def local(bundle: Path) -> Iterator[Server]:
    """Serves the bundle from one process."""
    command = [sys.executable, "-m", "fuseconv", "serve", f"demo={bundle}", "--local", "--port", "0", "--json"]
    command += ["--queue", "10000", "--timeout", "120"]  # what is late because of other processes is not lost
    with _started(command, {}, _url_in) as (process, url, mark):
        server = Server(url, mark)
        yield server
        process.send_signal(signal.SIGTERM)
        server.summary |= json.loads(process.communicate()[0])["result"]["models"]["demo"]


@contextmanager
def on_ray(bundle: Path) -> Iterator[Server]:
    """Serves the bundle with two replicas on Ray Serve."""
    command = [sys.executable, "-m", "fuseconv", "serve", f"demo={bundle}", "--replicas", "2", "--port", str(PORT)]
    command += ["--queue", "10000", "--timeout", "120"]
    busy = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}
    with _started(command, busy, _url_in) as (_, url, mark):  # by default a proxy that starts slowly is killed
        yield Server(url, mark, "ray::ServeReplica:fuseconv:Replica")


@contextmanager
def tritonserver(bundle: Path) -> Iterator[Server]:
    """Serves the bundle with two instances of Triton's Python backend, from the package nvidia-pytriton."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps nvidia-pytriton, as tests/tritonserver/test_triton.py says")
    package = Path(spec.origin).parent
    own = package / "tritonserver"
    stub = own / f"python_backend_stubs/{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        words = ["triton", str(bundle), "-o", str(folder / "models"), "--name", "demo", "--instances", "2", "-q"]
        subprocess.run([sys.executable, "-m", "fuseconv", *words, "--target", "torchscript"], check=True)  # noqa: S603
        shutil.copytree(own / "backends" / "python", folder / "backends" / "python")
        shutil.copy(stub, folder / "backends" / "python")
        program = str(shutil.copy(own / "bin" / "tritonserver", folder))
        for file in (program, folder / "backends" / "python" / stub.name):
            Path(file).chmod(0o755)
        command = [program, f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"]
        command += [f"--http-port={PORT}", "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
        # The Python of the backend is that of the first `python3` on the PATH.
        libraries = f"{package.parent / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        url = f"http://127.0.0.1:{PORT}"

        def ready(_log: str) -> str | None:
            try:
                with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as answer:  # noqa: S310 - our own
                    return url if answer.status == 200 else None
            except OSError:
                return None

        with _started(command, {"PATH": programs, "LD_LIBRARY_PATH": libraries}, ready) as (_, _, mark):
            yield Server(url, mark, stub.name)


SERVERS = {"local": local, "ray": on_ray, "triton": tritonserver}

"""AOTInductor: the program compiled to machine code in a `.pt2` package."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.errors import FileError, UnsupportedError, UpstreamError
from fuseconv.processes.forked import forked
from fuseconv.targets import exported
from fuseconv.targets.spec import Context, Runner, TargetSpec

if TYPE_CHECKING:
    import torch

    from fuseconv.program.captured import Program

SPEC = TargetSpec(
    "aoti",
    Path("aoti", "model.pt2"),
    preference=1,
    cuda_graphs=True,
    machine_code=True,
    varies="its machine code contains paths of torch and of Inductor's cache, and depends on the compiler and, on a "
    "GPU, on the times that Inductor measures: the same bytes need all of these to be the same",
)

_LOG_LINES = 20
_SYSTEM_CXX = Path("/usr/bin/g++")

_READS_FOLDERS = (2, 13)
"""The first release of torch whose loader accepts an unpacked package."""

_DIGITS = 16
"""The length of the folder name of an unpacked package."""

_IMPORTED = ("torch._inductor.compile_fx", "fuseconv.ops", "fuseconv.targets.c_shims", "fuseconv.weights.store")
"""The modules that a compiling process imports. The imports would take half of its time if it ran them itself."""


def check_machine(device: str) -> None:
    """Checks that the requirements for compiling are installed.

    Raises:
        UnsupportedError: a requirement is missing.
    """
    if (lacking := missing(device)) is not None:
        raise UnsupportedError(lacking, fix="install what is missing, or convert without the target aoti")


def unsupported(program: Program) -> str | None:
    """Returns the reason why the program cannot be compiled, or None."""
    return missing(program.contract.device)


def missing(device: str) -> str | None:
    """Returns what AOTInductor lacks here: a C++ compiler, or Triton, which it needs for GPU kernels."""
    compiler = shlex.split(_compiler(os.environ))[0]
    if not shutil.which(compiler):
        return f"AOTInductor needs a C++ compiler, but {compiler} is not on the PATH"
    if device == "cuda" and find_spec("triton") is None:
        return "AOTInductor needs Triton for a GPU, but Triton is not installed"
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Compiles the program in a child process to `aoti/model.pt2` and returns that path relative to `folder`.

    The compiler may run out of memory, abort, or cause an illegal access on the GPU without affecting the parent.

    Raises:
        UpstreamError: the compiler failed (the error contains the end of its log), or its cache is damaged.
        FileError: the package cannot be written.
    """
    from fuseconv.targets.own_outputs import own_outputs
    from fuseconv.targets.unplanned_attention import without_plans
    from fuseconv.weights.store import weights_of

    artifact, source = SPEC.artifact, context.scratch / exported.SPEC.artifact
    given = own_outputs(without_plans(program)).exported
    exported.save(given, source, None if context.store is None else context.store.table(weights_of(given)))
    try:
        (folder / artifact).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = str((folder / artifact).parent)
        raise FileError(f"the folder cannot be created: {error.strerror}", where=where) from error
    kept = "" if context.store is None else str(context.store.bundle)
    arguments = [str(source), str(folder / artifact), program.contract.device, kept, *map(str, context.op_files)]
    status, log = _run_child(arguments, context.scratch)
    if status == 0 and (folder / artifact).is_file():
        check_complete(folder / artifact)
        if context.store is not None:
            _unpack(folder / artifact)
        return artifact
    if any(reason in log for reason in ("No space left on device", "File too large", "Disk quota exceeded")):
        raise FileError("the package cannot be written: the disk is full", where=str(folder / artifact))
    tail = "\n".join(log.splitlines()[-_LOG_LINES:])
    raise UpstreamError(
        f"AOTInductor failed ({_status_text(status)}):\n{tail}",
        where="the target aoti",
        fix="leave the target aoti out",
    )


def check_complete(package: Path) -> None:
    """Rejects a package that contains an empty file, which would fail later when it is loaded.

    A killed compiler leaves empty files in its cache and uses them the next time.

    Raises:
        UpstreamError: the package contains an empty file. The error names the cache.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    with zipfile.ZipFile(package) as archive:
        empty = [member.filename for member in archive.infolist() if member.file_size == 0 and not member.is_dir()]
    if empty:
        raise UpstreamError(
            f"AOTInductor's package contains an empty file, {Path(empty[0]).name}: AOTInductor's cache is damaged, "
            "perhaps by a run that was killed",
            where="the target aoti",
            fix=f"delete {cache_dir()}",
        )


def load(path: Path, device: str) -> Runner:
    """Loads the package that `write` wrote.

    The op libraries that it calls must be loaded first. The machine code assumes contiguous and aligned memory without
    checking it, so other inputs are copied.

    The package's own thread guard serializes calls and synchronizes the host with the GPU between two calls, which a
    CUDA graph cannot capture. Therefore calls are serialized here.
    """
    import torch

    from fuseconv.targets.artifact import plain, release
    from fuseconv.weights.table import weights_of_artifact

    # torch._inductor.aoti_load_package is not used: it compiles a program for each set of vector instructions, to
    # compare the best set with the package's set in a warning, and its result parses the call's structure anew in every
    # call.
    package = torch._C._aoti.AOTIModelPackageLoader(str(_unpacked(path)), "model", True, 1, -1)
    if (weights := weights_of_artifact(path, device)) is not None:
        package.load_constants(weights, False, True, True)  # into the active buffer; all weights; without a copy
        # The package never releases the weights. A replaced file that is still mapped would keep its space until the
        # process ends.
        weakref.finalize(package, release, weights.values()).atexit = False
    guard, thread = threading.Lock(), threading.local()

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if device == "cuda" and not hasattr(thread, "has_context"):
            _make_context()
            thread.has_context = True
        with guard:
            return tuple(package.boxed_run(list(map(plain, inputs))))

    return run


def _unpack(package: Path) -> None:
    """Unpacks a package into a folder next to it, which is named after the hash of the package.

    A process that has loaded a library does not open another library at the same path. The compiler names its library
    after a part of the code, so a package of other code that replaces this package must be in a folder with another
    name.

    Raises:
        FileError: a file cannot be written.
    """
    try:
        with package.open("rb") as file:
            name = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
        with zipfile.ZipFile(package) as archive:
            archive.extractall(package.parent)
        package.with_suffix("").rename(package.with_name(name))
    except OSError as error:
        raise FileError(f"the package cannot be unpacked: {error.strerror}", where=str(package)) from error


def _unpacked(package: Path) -> Path:
    """Returns the folder of an unpacked package, or the package if this torch unpacks it at each load."""
    folder = next((path for path in package.parent.iterdir() if path.is_dir()), package)
    release = tuple(map(int, version("torch").split(".")[:2]))
    return folder if release >= _READS_FOLDERS else package


def _make_context() -> None:
    """Creates the CUDA context for kernel launches, which a new thread lacks until it uses the CUDA runtime.

    A thread that is capturing a CUDA graph already has a context, and the query below would end its capture.
    """
    import torch

    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().query()


def _run_child(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Runs aoti_compile in a child process.

    If the wait is interrupted, the child and its processes are killed.
    """
    from fuseconv.ops import library

    searched = os.pathsep.join(filter(None, [str(library.FOLDER), os.environ.get("LIBRARY_PATH")]))
    environment = {**compilers(os.environ, folder), "LIBRARY_PATH": searched}  # linkers read LIBRARY_PATH
    with (
        tempfile.TemporaryFile() as said,
        forked(
            "fuseconv.targets.aoti_compile",
            *arguments,
            before=_IMPORTED,
            environment=environment,
            folder=str(folder),
            stdout=said.fileno(),
            stderr=said.fileno(),
        ) as process,
    ):
        status = process.wait()
        said.seek(0)
        return status, said.read().decode(errors="replace")


def _compiler(environment: Mapping[str, str]) -> str:
    return environment.get("CXX") or "g++"


def compilers(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns the environment variables that select the system compiler, if the current one links libstdc++ statically.

    A package that is linked in this way contains a second copy of libstdc++, and crashes when torch, which contains the
    first copy, loads it.
    """
    probe = folder / "probe.so"
    command = [*shlex.split(_compiler(environment)), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(probe)]
    source = "#include <iostream>\nvoid probe() { std::cout << 1; }\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0 or b"libstdc++.so" in probe.read_bytes() or not _SYSTEM_CXX.exists():
        return {}
    return {"CXX": str(_SYSTEM_CXX), "CC": str(_SYSTEM_CXX.with_name("gcc"))}


def _status_text(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit {status}"

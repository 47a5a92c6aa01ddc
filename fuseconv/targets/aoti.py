"""The aoti target: AOTInductor compiles the program to machine code in a `.pt2` package."""

from __future__ import annotations

import hashlib
import os
import re
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
    in_place=True,
    usually="about a minute, and several for a large model",
    varies="its machine code contains paths of torch and of Inductor's cache, and depends on the compiler and, on a "
    "GPU, on the times that Inductor measures: the same bytes need all of these to be the same",
)

_LOG_LINES = 20
_MESSAGE = re.compile(r"(\w+\.)*\w+(Error|Exception): ")
_SYSTEM_CXX = Path("/usr/bin/g++")

_READS_FOLDERS = (2, 13)
"""The first release of torch whose loader accepts an unpacked package."""

_DIGITS = 16
"""The length of the folder name of an unpacked package."""

_IMPORTED = ("torch._inductor.compile_fx", "fuseconv.ops", "fuseconv.targets.c_shims", "fuseconv.weights.store")
"""The modules that the server process imports before it forks. The imports would take half of a compiling process's
time."""


def check_machine(device: str) -> None:
    """Checks that the compilers that AOTInductor calls are installed.

    Raises:
        UnsupportedError: a compiler is missing.
    """
    if (lacking := missing(device)) is not None:
        raise UnsupportedError(lacking, fix="install what is missing, or convert without the target aoti")


def unsupported(program: Program) -> str | None:
    """Returns why the program cannot be compiled, or cannot be on this machine, or None if it can."""
    from fuseconv.graph.recurrent import why_not_unrolled

    return missing(program.contract.device) or why_not_unrolled(program.exported.graph)


def missing(device: str) -> str | None:
    """Describes the missing requirement of AOTInductor, or returns None if nothing is missing.

    AOTInductor requires a C++ compiler and, for a GPU, Triton.
    """
    compiler = shlex.split(_compiler(os.environ))[0]
    if not shutil.which(compiler):
        return f"AOTInductor needs a C++ compiler, but {compiler} is not on the PATH"
    if device == "cuda" and find_spec("triton") is None:
        return "AOTInductor needs Triton for a GPU, but Triton is not installed"
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Compiles the program in a child process to `aoti/model.pt2`, or the path in `context`, and returns this path.

    The machine code runs on every CPU with the vector instructions that torch uses here, and no other instructions
    are used: see `aoti_compile`.

    If the compiler runs out of memory, aborts, or causes an illegal memory access on the GPU, only the child process
    fails.

    Raises:
        UpstreamError: the compiler failed (the error contains the end of its log), or its cache is damaged.
        FileError: the package cannot be written.
    """
    from fuseconv.targets.in_place import in_place
    from fuseconv.targets.unplanned_attention import without_plans
    from fuseconv.weights.store import weights_of

    artifact, source = context.artifact or SPEC.artifact, context.scratch / exported.SPEC.artifact
    given = in_place(without_plans(program)).exported
    exported.save(given, source, None if context.store is None else context.store.table(weights_of(given)))
    try:
        (folder / artifact).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = str((folder / artifact).parent)
        raise FileError.unwritable("the folder cannot be created", error, where) from error
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
    raise UpstreamError(
        f"AOTInductor failed ({_status_text(status)}):\n{end_of(log)}",
        where="the target aoti",
        fix="leave the target aoti out",
    )


def end_of(log: str) -> str:
    """Returns the last lines of a log, after the message of its last exception if that stands before them."""
    lines = log.splitlines()
    messages = [line for line in lines[:-_LOG_LINES] if _MESSAGE.match(line)]
    last = lines[-_LOG_LINES:]
    if messages and not any(map(_MESSAGE.match, last)):
        last = [messages[-1], *last]
    return "\n".join(last)


def check_complete(package: Path) -> None:
    """Rejects a package that contains an empty file, because loading the package would fail.

    A killed compiler leaves empty files in its cache, and the next compilation uses these files.

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

    The caller must first load the op libraries that the package calls. The machine code assumes that inputs are
    contiguous and aligned and does not check this, so the runner copies all other inputs.

    The package's own thread guard would serialize calls, but it also synchronizes the host with the GPU between two
    calls, which a CUDA graph cannot capture. Therefore the runner serializes calls with a lock of its own.
    """
    import torch

    from fuseconv.targets.artifact import release
    from fuseconv.weights.table import weights_of_artifact

    # torch._inductor.aoti_load_package is not used, for two reasons. It compiles a program for each vector instruction
    # set, only to warn if the package was compiled for another set. And its result parses the pytree spec of the
    # arguments again in every call.
    package = torch._C._aoti.AOTIModelPackageLoader(str(_unpacked(path)), "model", True, 1, -1)
    if (weights := weights_of_artifact(path, device)) is not None:
        package.load_constants(weights, False, True, True)  # into the active buffer; all weights; without a copy
        # The package never releases the weights. A replaced file that is still mapped would keep its space until the
        # process ends.
        weakref.finalize(package, release, weights.values()).atexit = False
    return _Package(package, device)


class _Package:
    """A loaded package, whose calls take turns.

    Attributes:
        turn: the lock that a call holds. A thread that holds it may call the package.
    """

    def __init__(self, package: torch._C._aoti.AOTIModelPackageLoader, device: str) -> None:
        from fuseconv.targets.artifact import plain

        self.turn = threading.RLock()
        self._package = package
        self._plain = plain
        self._device = device
        self._thread = threading.local()

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self._device == "cuda" and not hasattr(self._thread, "has_context"):
            _make_context()
            self._thread.has_context = True
        with self.turn:
            return tuple(self._package.boxed_run(list(map(self._plain, inputs))))


def _unpack(package: Path) -> None:
    """Unpacks a package into a folder next to it, which is named after the hash of the package.

    The dynamic loader does not reload a library whose path is already loaded. The compiler names the library after only
    a part of the code, so a different package could contain a library of the same name. The hash gives each package its
    own path.

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
        raise FileError.unwritable("the package cannot be unpacked", error, str(package)) from error


def _unpacked(package: Path) -> Path:
    """Returns the folder of an unpacked package, or the package itself if it has no folder or torch cannot load one."""
    folder = next((path for path in package.parent.iterdir() if path.is_dir()), package)
    release = tuple(map(int, version("torch").split(".")[:2]))
    return folder if release >= _READS_FOLDERS else package


def _make_context() -> None:
    """Creates the CUDA context of the current thread, which kernel launches require.

    A new thread has no context until it calls the CUDA runtime. A thread that is capturing a CUDA graph already has a
    context, and the query below would end the capture.
    """
    import torch

    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().query()


def _run_child(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Runs aoti_compile in a child process, and returns its exit status and its output.

    If the wait is interrupted, the child and its processes are killed.

    Args:
        arguments: the arguments of `aoti_compile.main`.
        folder: the working directory of the child.
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
    """Returns CXX and CC of the system compiler if the current one links libstdc++ statically, else an empty dict.

    A package with a statically linked libstdc++ crashes when it is loaded, because the process then contains two copies
    of libstdc++: the package's and torch's.

    Args:
        environment: the environment variables, whose CXX is the current compiler. Default: g++.
        folder: an existing folder, in which a small library is linked as a test.
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

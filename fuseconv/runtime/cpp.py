"""Finds, builds and runs fuseconv-run, the program of the C++ runtime, whose sources are part of the package."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fuseconv.errors import (
    ContractError,
    FileError,
    FuseconvError,
    RefusedError,
    UnsupportedError,
    UpstreamError,
    UsageError,
)
from fuseconv.targets import TARGETS, spec_of

NAME = "fuseconv-run"

LIBRARY = "libfuseconv_runtime.a"
"""The static library that `build` stores beside the program. A C++ project passes it to CMake as FUSECONV_LIBRARY."""

VARIABLE = "FUSECONV_RUN"
"""The environment variable that gives the path of the program. It takes precedence over the PATH and the cache."""

HOW_TO_BUILD = "run `fuseconv verify BUNDLE --all-runtimes --build-runtime` once to build it"

_LOG_LINES = 20
_SAID = re.compile(
    r"^error: (?P<what>.*?)(?:\n  at: (?P<where>[^\n]*))?(?:\n  fix: (?P<fix>[^\n]*))?\Z", re.DOTALL | re.MULTILINE
)
_UNGRAPHED = ("CUDA graphs cannot be used", "the model cannot be captured in a CUDA graph")
_ERRORS: Mapping[int, type[FuseconvError]] = {
    error.exit_status: error for error in (ContractError, RefusedError, UnsupportedError, UpstreamError, FileError)
}


def find() -> Path | None:
    """Returns the path of fuseconv-run, or None if the program is not found.

    Searches in this order: the path in FUSECONV_RUN, the PATH, and the cache folder in which `build` stores the
    program.

    Raises:
        UsageError: the program named by FUSECONV_RUN does not exist.
    """
    if named := os.environ.get(VARIABLE):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise UsageError(
                f"the program {named} does not exist", where=VARIABLE, fix=f"set it to the path of {NAME}, or unset it"
            )
        return Path(named)
    if on_path := shutil.which(NAME):
        return Path(on_path)
    return _built() if _built().is_file() else None


def unsupported(target: str) -> UnsupportedError | None:
    """Returns an error that says why the C++ runtime does not support a target, or None if it supports the target."""
    why = spec_of(target).python_only
    others = sorted(
        name for name, other in TARGETS.items() if other.SPEC.runtime == "torch" and not other.SPEC.python_only
    )
    return UnsupportedError(why, fix=f"use {' or '.join(others)} in C++") if why else None


def check_buildable() -> None:
    """Checks that everything `build` requires is installed: CMake, ninja or make, a C++ compiler and the JSON headers.

    Raises:
        UnsupportedError: a tool or the headers are missing. The error lists everything that is missing.
    """
    compilers = (os.environ.get("CXX", "").partition(" ")[0], "c++", "g++", "clang++")
    headers = (json_headers(), Path("/usr/include"), Path("/usr/local/include"))
    there = {
        "CMake": _tool("cmake"),
        "ninja or make": _tool("ninja") or _tool("make"),
        "nlohmann/json.hpp": any(folder and (folder / "nlohmann/json.hpp").is_file() for folder in headers),
        "a C++ compiler": any(_tool(name) for name in compilers if name),
    }
    if lacking := [name for name, found in there.items() if not found]:
        raise UnsupportedError(
            f"{NAME} cannot be built without {', '.join(lacking)}",
            where=str(_sources()),
            fix="pip install 'fuseconv[cpp]', and apt-get install g++ for a compiler",
        )


def build() -> Path:
    """Builds the program against the installed torch, unless it is built already, and returns its path.

    Stores the program and its static library in the user's cache folder, under a name derived from the sources and the
    installed torch. The first build takes about a minute.

    Raises:
        UnsupportedError: a required tool is missing.
        UpstreamError: CMake or the compiler failed. The error contains the end of the log.
        FileError: the cache folder cannot be written.
    """
    program = _built()
    if program.is_file():
        return program
    check_buildable()
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            _cmake(Path(folder))
            for name in (LIBRARY, NAME):  # each move is atomic; the program comes last, as other processes look for it
                Path(folder, name).replace(program.with_name(name))
    except OSError as error:
        raise FileError(f"{NAME} cannot be stored: {error.strerror}", where=str(error.filename or program)) from error
    return program


@functools.cache
def versions(program: Path) -> Mapping[str, str]:
    """Asks the program for the versions of its libraries, and returns them by name: `torch` and `onnxruntime`.

    For a library that the program cannot use, the value is `- REASON` instead of a version.

    Raises:
        UpstreamError: the program does not start, or belongs to a different version of fuseconv.
    """
    environment = {**os.environ, **libraries("cpu")}
    done = subprocess.run(  # noqa: S603 - the program that the user named or built
        [program, "--versions"], env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise _said(done.returncode, done.stderr, program)
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {name: text for name, _, text in lines}


def run(
    program: Path,
    bundle: Path,
    target: str,
    calls: Sequence[Mapping[str, torch.Tensor]],
    *,
    device: str,
    cuda_graphs: bool = False,
) -> list[dict[str, torch.Tensor]]:
    """Runs all calls of a bundle in one process of the C++ runtime, which loads the bundle once.

    Args:
        program: the path of fuseconv-run.
        bundle: the folder of the bundle.
        target: a target of the bundle that the C++ runtime supports.
        calls: for each call, the inputs by name, on any device.
        device: the device of the bundle, `cpu` or `cuda`.
        cuda_graphs: whether each input shape is captured in a CUDA graph at its first call.

    Returns:
        For each call, the outputs by name, on the CPU.

    Raises:
        UnsupportedError: an input is complex, or `cuda_graphs` is True and a call cannot be captured.
        UpstreamError: the program crashed, or skipped a call.
        FuseconvError: the program printed an error. The exit status determines the class.
    """
    from safetensors.torch import load_file, save_file

    if any(tensor.is_complex() for call in calls for tensor in call.values()):
        raise UnsupportedError(
            "the C++ runtime does not support complex numbers", where=str(bundle), fix="run it from Python"
        )
    with tempfile.TemporaryDirectory() as scratch:
        words: list[str | Path] = [program, bundle, "--target", target]
        words += ["--cuda-graphs", "on" if cuda_graphs else "off"]
        outputs = [Path(scratch, f"outputs_{index}") for index in range(len(calls))]
        for index, (call, output) in enumerate(zip(calls, outputs, strict=True)):
            given = Path(scratch, f"inputs_{index}")
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in call.items()}, given)
            words += ["--inputs", given, "-o", output]
        environment = {**os.environ, **libraries(device)}
        done = subprocess.run(  # noqa: S603 - the program that the user named or built
            words, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            error = _said(done.returncode, done.stderr, program)
            if cuda_graphs and error.what.startswith(_UNGRAPHED):
                raise UnsupportedError(
                    f"no CUDA graphs: {error.what}", where=str(bundle), fix="the target runs without them"
                )
            raise error
        if not all(output.is_file() for output in outputs):
            raise UpstreamError(
                f"{program} skipped calls: it is from another version of fuseconv", where=VARIABLE, fix="rebuild it"
            )
        return [load_file(output) for output in outputs]


def libraries(device: str) -> dict[str, str]:
    """Returns the environment variables that let a C++ program find shared libraries installed as Python packages.

    The variables locate ONNX Runtime, unless FUSECONV_ONNXRUNTIME is already set, and for "cuda" the CUDA libraries.
    """
    found: dict[str, str] = {}
    onnxruntime = _package("onnxruntime")
    library = next((onnxruntime / "capi").glob("libonnxruntime.so*"), None) if onnxruntime is not None else None
    if "FUSECONV_ONNXRUNTIME" not in os.environ and library is not None:
        found["FUSECONV_ONNXRUNTIME"] = str(library)
    nvidia = _package("nvidia")
    if device == "cuda" and nvidia is not None:
        folders = [str(folder) for folder in sorted(nvidia.glob("*/lib"))]
        found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), *folders]))
    return found


def json_headers() -> Path | None:
    """Returns the include folder that contains nlohmann/json.hpp, or None if the headers are not installed.

    This is the folder in FUSECONV_JSON if that variable is set, otherwise the folder in the package nlohmann_json.
    """
    if named := os.environ.get("FUSECONV_JSON"):
        return Path(named)
    package = _package("nlohmann_json")
    return None if package is None else package / "include"


def _said(status: int, text: str, program: Path) -> FuseconvError:
    """Returns an exception for the error that the program printed to stderr before it exited.

    Args:
        status: the exit status, which determines the class of the exception.
        text: the program's stderr. If it contains no error message, the result is an UpstreamError with its last lines.
        program: the path of the program.
    """
    match = _SAID.search(text.strip())
    if match is None or status not in _ERRORS:
        last = "\n".join(text.splitlines()[-3:])
        return UpstreamError(f"{NAME} exited with {status}: {last}", where=str(program))
    return _ERRORS[status](match["what"], where=match["where"] or "", fix=match["fix"] or "")


def _cmake(folder: Path) -> None:
    """Builds the program with CMake in the build folder `folder`. Raises UpstreamError if CMake fails."""
    settings: dict[str, object] = {"CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path}
    if (headers := json_headers()) is not None:
        settings["FUSECONV_JSON"] = headers
    cmake, ninja = _tool("cmake"), _tool("ninja")
    assert cmake is not None  # `check_buildable` has verified that CMake is installed
    if ninja is not None:
        settings["CMAKE_MAKE_PROGRAM"] = ninja
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    for command in (
        [cmake, "-S", str(_sources()), "-B", str(folder), *(["-G", "Ninja"] if ninja else []), *defined],
        [cmake, "--build", str(folder), "--target", NAME],
    ):
        done = subprocess.run(  # noqa: S603 - CMake on our own sources
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-_LOG_LINES:])
            raise UpstreamError(
                f"{NAME} failed to build:\n{tail}",
                where=str(_sources()),
                fix=f"build it by hand as described in samples/04_cpp, and set {VARIABLE} to its path",
            )


def _built() -> Path:
    """Returns the program's path in the cache, which depends on the sources and on the installed torch."""
    key = hashlib.sha256(f"{torch.__version__} {torch.__file__}".encode())
    for path in sorted(path for path in _sources().rglob("*") if path.is_file()):
        key.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "fuseconv" / f"runtime-{key.hexdigest()[:16]}" / NAME


def _sources() -> Path:
    """Returns the folder of the C++ sources: in the installed package, or csrc/runtime in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "share" / "cmake" / "fuseconv"
    return installed if installed.is_dir() else package.parent / "csrc" / "runtime"


def _tool(name: str) -> str | None:
    """Returns the path of a tool that is on the PATH or next to the Python interpreter, or None if there is none.

    The second place matters if the interpreter's virtual environment is not activated.
    """
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _package(name: str) -> Path | None:
    """Returns the folder of a Python package without importing the package, or None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None

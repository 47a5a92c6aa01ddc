"""Checks what this machine can build and run. Each failed check says how to fix the problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fuseconv import ops
from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import FuseconvError, UnsupportedError
from fuseconv.ops import library
from fuseconv.runtime import cpp
from fuseconv.runtime.choosing_targets import choose_target
from fuseconv.runtime.model import check_target
from fuseconv.targets import onnx_session

TORCH_OLDEST = (2, 10)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was checked.
        ok: whether the check passed.
        found: what the check found, such as a version or the reason for a failure.
        fix: what to do if the check failed. May be empty.
        needed: whether a failure prevents all use of fuseconv, or for a bundle the use of its default target. The
            other checks matter only for some targets or kinds of model files.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as plain JSON values."""
        return asdict(self)


def findings() -> Iterator[Finding]:
    """Runs all checks in the order in which a conversion depends on them, and yields their results."""
    yield Finding("python", True, f"{platform.python_version()} on {platform.machine()} {platform.system()}")
    yield _torch()
    yield _library("op library, cpu", "cpu", "make build")
    yield _gpu()
    if torch.cuda.is_available():
        yield _library("op library, cuda", "cuda", "run `make build CUDA=ON` with nvcc on the PATH")
    yield _compiler()
    yield _package("onnxscript", "ONNX export", "pip install onnxscript")
    yield _onnxruntime()
    yield _plugin("cpu")
    if torch.cuda.is_available():
        yield _plugin("cuda")
    yield _cpp_runtime()
    yield _package("transformers", "Hugging Face folders", "pip install 'fuseconv[huggingface]'")


def bundle_findings(path: Path) -> tuple[list[Finding], FuseconvError | None]:
    """Checks a bundle without loading any of its code.

    Returns:
        The findings: whether the bundle is complete, where it was made, and which targets load here. Then the error
        that prevents loading the default target, or None if the default target loads here.

    Raises:
        UsageError: the bundle does not exist.
        RefusedError: the bundle is damaged.
    """
    folder = path.absolute()
    manifest = open_bundle(folder)
    made = manifest.environment
    versions = [f"torch {made.torch}", f"ONNX Runtime {made.onnxruntime}"]
    places = [f"{made.machine} with {made.cpu}", f"GPU architecture {made.gpu}"]
    parity = (
        "fails; the bundle was kept with --allow-mismatch" if manifest.mismatch else f"{len(manifest.parity)} rows pass"
    )
    found = [
        Finding("files", True, f"{len(manifest.files)}, all match the manifest"),
        Finding("made with", True, ", ".join(versions if made.onnxruntime else versions[:1])),
        Finding("made on", True, ", ".join(places if made.gpu else places[:1])),
        Finding("parity there", not manifest.mismatch, parity, "convert the model again"),
    ]
    preferred = choose_target(manifest, None, folder)
    errors: dict[str, FuseconvError] = {}
    for target in sorted(manifest.targets):
        try:
            package = check_target(folder, manifest, target)
        except FuseconvError as error:
            errors[target] = error
            found.append(Finding(target, False, error.what, error.fix, needed=target == preferred))
        else:
            several = len(manifest.packages_of(target)) > 1
            compiled = f", compiled for {package.environment.architecture}" if several else ""
            found.append(Finding(target, True, "loads here" + " (default)" * (target == preferred) + compiled))
    if preferred not in errors:
        return found, None
    first, others = errors[preferred], [target for target in sorted(manifest.targets) if target not in errors]
    what = f"the default target {preferred} does not load here: {first.what}"
    fix = first.fix + (f", or load the target {others[0]}, which loads here" if others else "")
    return found, type(first)(what, where=first.where, fix=fix)


def _torch() -> Finding:
    """Checks that torch is not older than `TORCH_OLDEST`."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    oldest = ".".join(map(str, TORCH_OLDEST))
    return Finding("torch", version >= TORCH_OLDEST, torch.__version__, f"install torch {oldest} or newer", needed=True)


def _library(name: str, device: str, fix: str) -> Finding:
    """Checks that the op libraries for a device were built and can be found. `name` is the name of the finding."""
    try:
        paths = ops.library_paths(device)
    except FuseconvError as error:
        return Finding(name, False, error.what, error.fix or fix, needed=True)
    return Finding(name, True, ", ".join(path.name for path in paths))


def _plugin(device: str) -> Finding:
    """Checks that the op library for ONNX Runtime, the plugin, can be found for a device."""
    name = f"ONNX Runtime plugin, {device}"
    try:
        return Finding(name, True, library.plugin_path(device).name)
    except FuseconvError as error:
        return Finding(name, False, "not built", f"needed for the target onnx-plugin: {error.fix}")


def _gpu() -> Finding:
    """Checks that torch can use a GPU, and reports its name, architecture and CUDA version."""
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is a CPU build"
        return Finding("gpu", False, f"none: {built}", "needed only for --device cuda")
    properties = torch.cuda.get_device_properties(0)
    capability = f"sm_{properties.major}{properties.minor}"
    return Finding("gpu", True, f"{properties.name}, {capability}, CUDA {torch.version.cuda}")


def _compiler() -> Finding:
    """Checks that a C++ compiler is installed and runs: the compiler in CXX if set, else g++ or clang++."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    name = "C++ compiler"
    if compiler is None:
        return Finding(name, False, "none", "needed for conversion with AOTInductor: apt-get install g++")
    command = [*compiler.split(), "--version"]
    if shutil.which(command[0]) is None:
        return Finding(name, False, f"{command[0]} was not found", "set CXX to a working compiler")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own CXX
    first = done.stdout.splitlines()[0] if done.stdout else f"{compiler} --version printed nothing"
    return Finding(name, done.returncode == 0, first, "set CXX to a working compiler")


def _package(package: str, purpose: str, fix: str) -> Finding:
    """Checks that an optional Python package is installed. If not, the fix says for what the package is needed."""
    try:
        return Finding(package, True, importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Finding(package, False, "not installed", f"needed for {purpose}: {fix}")


def _onnxruntime() -> Finding:
    """Checks that ONNX Runtime is installed, and reports its version and execution providers."""
    try:
        onnx_session.check_installed("cpu")
    except UnsupportedError as error:
        return Finding("onnxruntime", False, error.what, error.fix)
    import onnxruntime

    providers: Callable[[], list[str]] = onnxruntime.get_available_providers
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in providers())
    return Finding("onnxruntime", True, f"{onnxruntime.__version__}, {names}")


def _cpp_runtime() -> Finding:
    """Checks that the program of the C++ runtime is built and starts, and reports its path and versions."""
    name = "C++ runtime"
    try:
        program = cpp.find()
        if program is None:
            cpp.check_buildable()
            return Finding(name, False, "not built", cpp.HOW_TO_BUILD)
        versions = cpp.versions(program)
    except FuseconvError as error:
        return Finding(name, False, error.what, error.fix)
    return Finding(name, True, ", ".join([str(program), *(f"{name} {version}" for name, version in versions.items())]))

"""Describes this machine, and checks whether it can run an artifact that was built on another machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fuseconv.bundle.manifest import Environment
from fuseconv.errors import UnsupportedError
from fuseconv.targets import spec_of

_CPUS = Path("/proc/cpuinfo")

_ISA = ("DEFAULT", "NO AVX", "AVX2", "AVX512")
"""torch's names of x86 instruction sets. Each set includes the previous ones."""


def environment(device: str) -> Environment:
    """Returns this machine's hardware and package versions. `cuda` and `gpu` are None unless the device is `cuda`."""
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if device == "cuda" else None
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        machine=platform.machine(),
        cpu=torch.backends.cpu.get_cpu_capability(),
        torch=torch.__version__,
        onnx=version("onnx"),
        onnxruntime=_version_of_any("onnxruntime", "onnxruntime-gpu"),
        cuda=torch.version.cuda if device == "cuda" else None,
        gpu=capability,
    )


def device_name(device: str) -> str:
    """Returns the name of the current GPU if the device is `cuda`, else the name of this machine's processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = _CPUS.read_text(errors="replace").splitlines() if _CPUS.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version_of_any(*names: str) -> str | None:
    """Returns the version of the first of these packages that is installed, or None if none of them is."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_environment(made: Environment, here: Environment, target: str, folder: Path) -> None:
    """Checks that an artifact can run on this machine, before any part of it is loaded.

    Raises:
        UnsupportedError: the artifact requires another machine architecture or GPU architecture, instructions that this
            processor lacks, or a newer version of torch or ONNX Runtime.
    """
    problems, spec = [], spec_of(target)
    if made.machine != here.machine:
        problems.append(f"a {made.machine} machine, but this is {here.machine}")
    if made.gpu != here.gpu:
        problems.append(f"GPU architecture {made.gpu}, but this is {here.gpu}")
    if spec.runtime == "onnxruntime":
        if _release(made.onnxruntime) > _release(here.onnxruntime):
            problems.append(f"ONNX Runtime {made.onnxruntime}, but this is {here.onnxruntime}")
    elif _release(made.torch) > _release(here.torch):
        problems.append(f"torch {made.torch}, but this is {here.torch}")
    if spec.machine_code and not _includes(here.cpu, made.cpu):
        problems.append(f"a CPU with {made.cpu}, but this one has {here.cpu}")
    if problems:
        raise UnsupportedError(
            f"the target {target} was built for {'; '.join(problems)}",
            where=str(folder),
            fix="convert the model on this machine",
        )


def _release(text: str | None) -> tuple[int, ...]:
    """Returns the major and minor version numbers, or (0, 0) if the version is None.

    File formats and ABIs change only when one of these numbers changes.
    """
    return tuple(int(part) for part in (text or "0.0").split("+")[0].split(".")[:2])


def _includes(here: str, made: str) -> bool:
    """Returns whether a processor with the instruction set `here` can run code built for the instruction set `made`."""
    if here in _ISA and made in _ISA:
        return _ISA.index(made) <= _ISA.index(here)
    return here == made

"""Describes this machine, and what an artifact that was built on another machine requires that this one is not."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fuseconv.bundle.environment import Environment
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


def architecture_problems(made: Environment, here: Environment, target: str) -> list[str]:
    """Returns the hardware for which an artifact was built and which this machine is not, and what this machine is."""
    problems = []
    if made.machine != here.machine:
        problems.append(f"a {made.machine} machine, but this is {here.machine}")
    if made.gpu != here.gpu:
        problems.append(f"GPU architecture {made.gpu}, but this is {here.gpu}")
    if spec_of(target).machine_code and not instructions(made) <= instructions(here):
        problems.append(f"a CPU with {made.cpu}, but this one has {here.cpu}")
    return problems


def version_problems(made: Environment, here: Environment, target: str) -> list[str]:
    """Returns the newer version of torch or ONNX Runtime with which an artifact was built, and this machine's."""
    if spec_of(target).runtime == "onnxruntime":
        if _release(made.onnxruntime) > _release(here.onnxruntime):
            return [f"ONNX Runtime {made.onnxruntime}, but this is {here.onnxruntime}"]
    elif _release(made.torch) > _release(here.torch):
        return [f"torch {made.torch}, but this is {here.torch}"]
    return []


def _release(text: str | None) -> tuple[int, ...]:
    """Returns the major and minor version numbers, or (0, 0) if the version is None.

    File formats and ABIs change only when one of these numbers changes.
    """
    return tuple(int(part) for part in (text or "0.0").split("+")[0].split(".")[:2])


def instructions(environment: Environment) -> frozenset[str]:
    """Returns the names of a CPU's instruction sets: the one that torch names, and those that it includes."""
    cpu = environment.cpu
    return frozenset(_ISA[: _ISA.index(cpu) + 1] if cpu in _ISA else (cpu,))

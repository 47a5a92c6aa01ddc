"""Machines for which an artifact was not built, and processes that are such machines."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

CPP_TARGETS = ("aoti", "torchscript", "onnx-plugin", "onnx")


ELSEWHERE = [
    *(("machine", "sparc", target, "a sparc machine, but this is ") for target in CPP_TARGETS),
    *(("gpu", "9.0", target, "GPU architecture 9.0, but this is None") for target in CPP_TARGETS),
    *(("torch", "99.1.0", target, "torch 99.1.0, but this is 2.") for target in ("aoti", "torchscript")),
    *(("onnxruntime", "99.1.0", target, "ONNX Runtime 99.1.0, but this is 1.") for target in ("onnx", "onnx-plugin")),
    ("cpu", "AVX1024", "aoti", "a CPU with AVX1024, but this one has "),
]

_FEWER = {"AVX512": "avx2", "AVX2": "default"}
"""For torch's name of a CPU's instructions: the value of ATEN_CPU_CAPABILITY for the CPU with the fewer of the next."""


def fewer_instructions() -> str:
    """The value of ATEN_CPU_CAPABILITY by which a process is a machine with fewer instructions. Skips if none is."""
    here = torch.backends.cpu.get_cpu_capability()
    if here not in _FEWER:
        pytest.skip(f"there is no machine with fewer instructions than {here}")
    return _FEWER[here]


def elsewhere(capability: str, code: str, *arguments: object) -> str:
    """Runs Python code on the machine with these instructions, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_elsewhere(capability: str, *words: object) -> Any:
    """Runs a command of fuseconv on that machine, and returns what it printed as JSON."""
    code = "import sys; from fuseconv.cli import main; main([*sys.argv[1:], '--json'])"
    return json.loads(elsewhere(capability, code, *words))


def hashes(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of a folder, by its path in the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

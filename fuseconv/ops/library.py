"""Locates the compiled op libraries and loads them.

The libraries depend on torch but not on this package: a process that uses a bundle without fuseconv calls
`torch.ops.load_library` on the copies in the bundle. If a process loads several copies of a library, the first copy
that contains an op registers the op. A copy that has another schema of an op registers none of its ops.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from fuseconv.errors import FileError, UnsupportedError

FOLDER = Path(__file__).parent.parent / "lib"
"""The folder of the installed package into which the build puts the libraries."""

_FILES = {"cpu": ("libfuseconv_cpu.so",), "cuda": ("libfuseconv_cpu.so", "libfuseconv_cuda.so")}

PLUGINS = {"cpu": "libfuseconv_ort_cpu.so", "cuda": "libfuseconv_ort_cuda.so"}
"""The file name of the op library for ONNX Runtime, by device: "cpu" or "cuda"."""


def library_paths(device: str) -> list[Path]:
    """Returns the paths of the op libraries that a bundle must contain, in the order in which they must be loaded.

    Args:
        device: the device of the bundle, "cpu" or "cuda".

    Raises:
        FileError: a library has not been built.
    """
    paths = [FOLDER / name for name in _FILES[device]]
    for path in paths:
        if not path.is_file():
            raise FileError(
                f"the op library {path.name} is not built",
                where=str(path),
                fix="run `make build` (for CUDA `make build CUDA=ON`, where nvcc is), or reinstall fuseconv",
            )
    return paths


def plugin_path(device: str) -> Path:
    """Returns the path of the op library for ONNX Runtime, which contains the same kernels as the libraries for torch.

    Args:
        device: the device of the ONNX model, "cpu" or "cuda".

    Raises:
        FileError: the library has not been built.
    """
    path = FOLDER / PLUGINS[device]
    if not path.is_file():
        raise FileError(
            f"the op library for ONNX Runtime, {path.name}, is not built",
            where=str(path),
            fix="set FUSECONV_ONNXRUNTIME_INCLUDE to the folder of onnxruntime_c_api.h and run `make build` "
            "(for CUDA `make build CUDA=ON`, where nvcc and cublasLt.h are)",
        )
    return path


def load() -> None:
    """Loads the CPU library into torch, and also the CUDA library if it was built and torch supports CUDA.

    Raises:
        FileError: the CPU library has not been built, or a library cannot be loaded.
        UnsupportedError: this process has already loaded a library that has another schema of an op.
    """
    device = "cuda" if torch.version.cuda and (FOLDER / _FILES["cuda"][-1]).is_file() else "cpu"
    for path in library_paths(device):
        try:
            load_into_torch(path)
        except (OSError, RuntimeError) as error:
            raise FileError(
                f"the op library {path.name} cannot be loaded: {error}",
                where=str(path),
                fix="rebuild the library for this machine with `make build`",
            ) from error


def load_into_torch(path: Path) -> None:
    """Loads an op library, which registers its ops with torch.

    Raises:
        UnsupportedError: the library has another schema of an op than a library that is already loaded. It registers no
            ops.
        OSError, RuntimeError: the library cannot be loaded.
    """
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    conflict_of = getattr(ctypes.CDLL(str(path)), "fuseconv_conflict", None)  # libraries of rule packs have none
    if conflict_of is None:
        return
    conflict_of.restype = ctypes.c_char_p
    if (conflict := conflict_of()) is not None:
        raise UnsupportedError(
            f"the op library registers no ops: {os.fsdecode(conflict)}",
            where=str(path),
            fix="load the bundle in another process, or convert the models again with one version of fuseconv",
        )

"""Locates the compiled op libraries and loads them.

The libraries depend on torch but not on this package: a process that uses a bundle without fuseconv calls
`torch.ops.load_library` on the copies in the bundle. If a process loads several copies of a library, the first copy
that contains an op registers the op.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fuseconv.errors import FileError

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
    """
    device = "cuda" if torch.version.cuda and (FOLDER / _FILES["cuda"][-1]).is_file() else "cpu"
    for path in library_paths(device):
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            raise FileError(
                f"the op library {path.name} cannot be loaded: {error}",
                where=str(path),
                fix="rebuild the library for this machine with `make build`",
            ) from error

"""Loads a model file and the op library into an ONNX Runtime session, and wraps the session as a runner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.methods import weights_folder
from fuseconv.errors import RefusedError, UnsupportedError, UpstreamError
from fuseconv.targets.artifact import plain
from fuseconv.targets.spec import Runner
from fuseconv.untrusted.files import read_plain
from fuseconv.weights.table import is_inside

OLDEST = (1, 27)
"""The oldest supported version of ONNX Runtime. It is the first version that resolves function overloads in shape
inference. Version 1.26 is the first whose OrtValue supports DLPack in Python, and the op library alone needs only 1.17.
These versions were found by testing releases."""

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option that names the folder of external data for a model that is loaded from bytes. ONNX Runtime reads
no data outside this folder."""

_UNSERVED = re.compile(r"Provider type for (\w+) node with name '([^']*)' is not set")
"""ONNX Runtime's error message if neither the CUDA nor the CPU provider has a kernel for a node."""

_MISSING = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '([^']*)'")
"""ONNX Runtime's error message if the CPU provider has no kernel for a node."""

OTHER_DTYPE = "leave the target onnx out, or convert with --dtype f32"


def runner(session: Any, device: str) -> Runner:
    """Returns a runner that calls a session.

    Contiguous, aligned tensors are passed without a copy; `plain` copies all others.

    Args:
        session: the onnxruntime.InferenceSession to call.
        device: `cpu` or `cuda`: the device of the inputs and outputs.
    """
    elements = element_types()
    inputs = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        binding = session.io_binding()
        dense = [plain(tensor) for tensor in tensors]
        for name, tensor in zip(inputs, dense, strict=True):
            place = (device, tensor.device.index or 0)
            binding.bind_input(name, *place, elements[tensor.dtype], list(tensor.shape), tensor.data_ptr())
        for name in outputs:
            binding.bind_output(name, device)
        if device == "cuda":
            torch.cuda.current_stream().synchronize()  # ONNX Runtime uses its own stream
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return tuple(_tensor(value) for value in binding.get_outputs())

    return run


def element_types() -> dict[torch.dtype, int]:
    """Maps each torch dtype that ONNX Runtime accepts to its ONNX element type."""
    from onnx import TensorProto

    return {
        torch.float64: TensorProto.DOUBLE,
        torch.float32: TensorProto.FLOAT,
        torch.float16: TensorProto.FLOAT16,
        torch.bfloat16: TensorProto.BFLOAT16,
        torch.int64: TensorProto.INT64,
        torch.int32: TensorProto.INT32,
        torch.int16: TensorProto.INT16,
        torch.int8: TensorProto.INT8,
        torch.uint8: TensorProto.UINT8,
        torch.bool: TensorProto.BOOL,
    }


def _tensor(value: Any) -> torch.Tensor:
    tensor = torch.utils.dlpack.from_dlpack(value)
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor


def check_installed(device: str) -> None:
    """Checks that ONNX Runtime is installed and supports the device.

    Raises:
        UnsupportedError: ONNX Runtime is not installed, is too old, or lacks CUDA.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UnsupportedError(
            "ONNX Runtime is not installed", where="the target onnx", fix="install fuseconv[cpu] or fuseconv[gpu]"
        ) from error
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedError(
            f"ONNX Runtime {onnxruntime.__version__} is older than {oldest}, and does not support function overloads",
            where="the target onnx",
            fix=f"install onnxruntime {oldest} or newer (onnxruntime-gpu for CUDA)",
        )
    if device == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise UnsupportedError(
            "this build of ONNX Runtime does not support CUDA",
            where="the target onnx",
            fix="install fuseconv[gpu] instead of fuseconv[cpu]",
        )


def open_session(path: Path, device: str, library: Path | None = None) -> Any:
    """Loads a model into a new ONNX Runtime session and returns the session.

    Args:
        path: the path of the model to load.
        device: the device on which the model runs, `cpu` or `cuda`.
        library: the op library to load before the model. None if the model requires no op library.

    Raises:
        UnsupportedError: `check_installed` fails, the op library does not load, or a kernel is missing.
        UpstreamError: ONNX Runtime rejects the model for another reason.
    """
    check_installed(device)
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    providers: list[Any] = ["CPUExecutionProvider"]
    if device == "cuda":
        onnxruntime.preload_dlls()
        # By default, ONNX Runtime multiplies f32 in TF32; PyTorch does not.
        providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": "0"}))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # only errors: the warnings are about ONNX Runtime's own optimizer
    # Otherwise ONNX Runtime's threads spin after a call and take CPU cores from the rest of the program.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if library is not None:
        try:
            options.register_custom_ops_library(str(library))
        except errors.Fail as error:
            raise UnsupportedError(
                f"ONNX Runtime {onnxruntime.__version__} failed to load the op library: {error}",
                where=str(library),
                fix="leave the target onnx-plugin out, or use the ONNX Runtime of the machine that wrote the bundle",
            ) from error
    try:
        if (folder := weights_folder(path.parent)) == path.parent:
            return onnxruntime.InferenceSession(path, options, providers=providers)
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(folder))
        return onnxruntime.InferenceSession(read_plain(path, links=False), options, providers=providers)
    except errors.NotImplemented as error:
        missing = _MISSING.search(str(error))
        raise UnsupportedError(
            f"ONNX Runtime {onnxruntime.__version__} on {device} has no kernel"
            + (f" for {missing[1]} in this dtype" if missing else f": {error}"),
            where=f"{path}: {missing[2]}" if missing else str(path),
            fix=OTHER_DTYPE,
        ) from error
    except (errors.Fail, errors.InvalidGraph, errors.InvalidProtobuf, errors.RuntimeException) as error:
        if unserved := _UNSERVED.search(str(error)):
            raise UnsupportedError(
                f"ONNX Runtime {onnxruntime.__version__} on {device} has no kernel for {unserved[1]} in this dtype",
                where=f"{path}: {unserved[2]}",
                fix=OTHER_DTYPE,
            ) from error
        raise UpstreamError(f"ONNX Runtime failed to load the model: {error}", where=str(path)) from error


def check_external_data(path: Path) -> None:
    """Checks that the model's external weights are in the weights folder and within the bounds of their files.

    Raises:
        RefusedError: a weight is outside the folder, or extends beyond the end of its file.
    """
    import onnx

    folder = weights_folder(path.parent)
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        data = folder / entry["location"]
        if not is_inside(entry["location"]) or not _is_own(data, folder):
            problem = f"the weights of {tensor.name} are not in a file of the weights' folder: {entry['location']}"
        elif int(entry.get("offset", 0)) + int(entry.get("length", 0)) > data.stat().st_size:
            problem = f"the weights of {tensor.name} extend beyond the end of {entry['location']}"
        else:
            continue
        raise RefusedError(problem, where=str(path), fix="convert the model again")


def _is_own(data: Path, folder: Path) -> bool:
    """Returns whether `data` is an existing file whose path inside `folder` contains no symbolic link."""
    return data.is_file() and data.resolve() == folder.resolve() / data.relative_to(folder)

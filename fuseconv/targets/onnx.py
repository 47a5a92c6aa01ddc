"""The onnx target: standard operators, and fuseconv ops as ONNX functions in the domain com.fuseconv."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.errors import UnsupportedError
from fuseconv.targets.spec import Context, Runner, TargetSpec

if TYPE_CHECKING:
    from fuseconv.program.captured import Program

SPEC = TargetSpec("onnx", Path("model.onnx"), preference=5, runtime="onnxruntime")


def check_machine(device: str) -> None:
    """Checks that the packages of the exporter are installed.

    Raises:
        UnsupportedError: a package is not installed.
    """
    if find_spec("onnxscript") is None:
        raise UnsupportedError("onnxscript is not installed", fix="pip install onnxscript")


def unsupported(program: Program, *, own_kernels: bool = False) -> str | None:
    """Returns why the program cannot be written as ONNX, or None if no reason is known.

    The reasons are a missing ONNX Runtime, a complex input or output, the constant -0.0, a recurrent layer that ONNX or
    ONNX Runtime lacks, and a matrix product for which ONNX Runtime has no kernel.

    Args:
        program: the program to write.
        own_kernels: whether the kernels of fuseconv's library compute fuseconv's ops, as in the target onnx-plugin.
    """
    from fuseconv.targets.artifact import negative_zero
    from fuseconv.targets.onnx_kernels import missing_product
    from fuseconv.targets.onnx_recurrent import missing_layer

    if find_spec("onnxruntime") is None:
        return "ONNX Runtime is not installed: install fuseconv[cpu] or fuseconv[gpu]"
    if complex_inputs := [spec.name for spec in program.contract.inputs if spec.dtype in ("c64", "c128")]:
        return f"ONNX Runtime does not support complex numbers, but input {complex_inputs[0]} is complex"
    (results,) = program.exported.graph.output_node().args
    for name, node in zip(program.contract.outputs, results, strict=True):
        if node.meta["val"].is_complex():
            return f"ONNX Runtime does not support complex numbers, but output {name} is complex"
    if zero := negative_zero(program):
        return f"the ONNX exporter cannot express {zero}"
    if layer := missing_layer(program):
        return layer
    return missing_product(program, own_kernels=own_kernels)


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `model.onnx`, with its weights next to it or in the store, and returns its path relative to `folder`.

    The model is written to the top folder of the bundle, because ONNX Runtime reads weights only from the model's
    folder and its subfolders.

    Raises:
        UnsupportedError: ONNX cannot express an operator, or ONNX Runtime has no kernel for an operator in this dtype.
        UpstreamError: the exporter failed or wrote an invalid model.
        FileError: a file cannot be written.
    """
    from fuseconv.targets import onnx_export
    from fuseconv.targets.onnx_session import open_session

    onnx_export.save(program, folder / SPEC.artifact, context.store)
    open_session(folder / SPEC.artifact, program.contract.device)
    return SPEC.artifact


def load(path: Path, device: str) -> Runner:
    """Loads the model that `write` wrote into ONNX Runtime.

    Contiguous, aligned tensors are passed without a copy.

    Raises:
        RefusedError: the weights are outside the weights folder, or truncated.
        UnsupportedError: ONNX Runtime is not installed, lacks CUDA, or has no kernel for an operator.
    """
    from fuseconv.targets.onnx_session import check_external_data, open_session, runner

    check_external_data(path)
    return runner(open_session(path, device), device)

"""ONNX with our kernels: the nodes of com.fuseconv without bodies, and the op library for ONNX Runtime in the bundle.

It shares the weights of the target onnx. A node that the library does not serve, in its dtype, on its device, makes the
session fail; nothing stands in for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.errors import FileError, RefusedError
from fuseconv.targets import onnx
from fuseconv.targets.spec import Context, Runner, TargetSpec
from fuseconv.untrusted.files import check_unshared

if TYPE_CHECKING:
    from fuseconv.program.captured import Program

SPEC = TargetSpec("onnx-plugin", Path("onnx", "model.plugin.onnx"), preference=4, runtime="onnxruntime", plugin=True)


def check_machine(device: str) -> None:
    """Checks that ONNX can be written, and that this fuseconv was built with the library.

    Raises:
        UnsupportedError: the exporter's package is not installed.
        FileError: the library was not built.
    """
    from fuseconv.ops.library import plugin_path

    onnx.check_machine(device)
    plugin_path(device)


def unsupported(program: Program) -> str | None:
    """Says why it cannot be written: no ONNX, or this fuseconv was built without the library."""
    from fuseconv.ops.library import plugin_path

    try:
        plugin_path(program.contract.device)
    except FileError as error:
        return error.what
    return onnx.unsupported(program)


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `onnx/model.plugin.onnx` and `lib/libfuseconv_ort_*.so`; returns the path of the model within `folder`.

    Raises:
        UnsupportedError: an operator has no ONNX form, or ONNX Runtime has no kernel for one in this dtype.
        UpstreamError: the exporter failed, or made a model that is not valid.
        FileError: a file cannot be written.
    """
    import onnx as protobuf

    from fuseconv.ops.library import plugin_path
    from fuseconv.targets import onnx_export
    from fuseconv.targets.onnx_session import open_session

    source, artifact, device = folder / onnx.SPEC.artifact, folder / SPEC.artifact, program.contract.device
    is_shared = source.is_file()
    if not is_shared:
        onnx_export.save(program, source)
    model = protobuf.load(source, load_external_data=False)
    del model.functions[:]
    for node in model.graph.node:
        node.overload = ""
    library = _library(artifact, device)
    try:
        artifact.write_bytes(model.SerializeToString())
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(plugin_path(device).read_bytes())
        library.chmod(0o755)
        if not is_shared:
            source.unlink()
    except OSError as error:
        raise FileError(f"the model cannot be written: {error.strerror}", where=str(error.filename)) from error
    open_session(artifact, device, library)
    return SPEC.artifact


def load(path: Path, device: str) -> Runner:
    """Loads what `write` wrote into ONNX Runtime; tensors are handed over without a copy.

    Raises:
        RefusedError: the library is missing or others may write it, or the weights lie outside the model's folder.
        UnsupportedError: ONNX Runtime is not installed, lacks CUDA, or has no kernel for an operator.
    """
    from fuseconv.targets.onnx_session import check_external_data, open_session, runner

    library = _library(path, device)
    if not library.is_file():
        raise RefusedError(
            "the op library for ONNX Runtime is missing", where=str(library), fix="copy the bundle again"
        )
    check_unshared([library.parent.parent, library.parent, library])
    check_external_data(path)
    return runner(open_session(path, device, library), device)


def _library(artifact: Path, device: str) -> Path:
    """Where a bundle has the library."""
    from fuseconv.ops.library import PLUGINS

    return artifact.parent.parent / "lib" / PLUGINS[device]

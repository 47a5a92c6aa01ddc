"""ONNX with our kernels: the nodes of com.fuseconv without bodies, and the op library for ONNX Runtime in the bundle.

It shares the weights of the target onnx. A node that the library does not serve, in its dtype, on its device, makes the
session fail; nothing stands in for it.
"""

from __future__ import annotations

from pathlib import Path

from fuseconv.errors import FileError, RefusedError
from fuseconv.ops.library import PLUGINS, plugin_path
from fuseconv.program.captured import Program
from fuseconv.targets import onnx
from fuseconv.targets.artifact import Context, Runner
from fuseconv.targets.onnx_session import check_external_data, open_session, runner
from fuseconv.untrusted.files import check_unshared

NAME = "onnx-plugin"

ARTIFACT = onnx.ARTIFACT.with_suffix(".plugin.onnx")


def unsupported(program: Program) -> str | None:
    """Says why it cannot be written: no ONNX, or this fuseconv was built without the library."""
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

    source, device = folder / onnx.ARTIFACT, program.contract.device
    is_shared = source.is_file()
    if not is_shared:
        onnx.save(program, folder)
    model = protobuf.load(source, load_external_data=False)
    del model.functions[:]
    for node in model.graph.node:
        node.overload = ""
    library = _library(folder / ARTIFACT, device)
    try:
        (folder / ARTIFACT).write_bytes(model.SerializeToString())
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(plugin_path(device).read_bytes())
        library.chmod(0o755)
        if not is_shared:
            source.unlink()
    except OSError as error:
        raise FileError(f"the model cannot be written: {error.strerror}", where=str(error.filename)) from error
    open_session(folder / ARTIFACT, device, library)
    return ARTIFACT


def load(path: Path, device: str) -> Runner:
    """Loads what `write` wrote into ONNX Runtime; tensors are handed over without a copy.

    Raises:
        RefusedError: the library is missing or others may write it, or the weights lie outside the model's folder.
        UnsupportedError: ONNX Runtime is not installed, lacks CUDA, or has no kernel for an operator.
    """
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
    return artifact.parent.parent / "lib" / PLUGINS[device]

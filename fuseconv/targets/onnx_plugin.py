"""The onnx-plugin target: ONNX with com.fuseconv nodes that kernels of an ONNX Runtime op library compute.

This target shares its weights with the onnx target. If the library has no kernel for a node's op, dtype and device,
creating the session fails. There is no fallback.
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

SPEC = TargetSpec("onnx-plugin", Path("model.plugin.onnx"), preference=4, runtime="onnxruntime", plugin=True)


def check_machine(device: str) -> None:
    """Checks that the exporter is installed and that fuseconv was built with the op library for ONNX Runtime.

    Raises:
        UnsupportedError: a package of the exporter is not installed.
        FileError: the library was not built.
    """
    from fuseconv.ops.library import plugin_path

    onnx.check_machine(device)
    plugin_path(device)


def unsupported(program: Program) -> str | None:
    """Returns why the program cannot be written for this target, or None if no reason is known.

    The reasons are the reasons of the onnx target, and a build of fuseconv without the op library for ONNX Runtime.
    """
    from fuseconv.ops.library import plugin_path

    try:
        plugin_path(program.contract.device)
    except FileError as error:
        return error.what
    return onnx.unsupported(program, own_kernels=True)


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `model.plugin.onnx` and `lib/libfuseconv_ort_*.so`.

    Returns the relative path of the model.

    Raises:
        UnsupportedError: ONNX cannot express an operator, or ONNX Runtime has no kernel for an operator in this dtype.
        UpstreamError: the exporter failed or wrote an invalid model.
        FileError: a file cannot be written.
    """
    import onnx as protobuf

    from fuseconv.ops.library import plugin_path
    from fuseconv.targets import onnx_export
    from fuseconv.targets.onnx_session import open_session

    source, artifact, device = folder / onnx.SPEC.artifact, folder / SPEC.artifact, program.contract.device
    is_shared = source.is_file()
    if not is_shared:
        onnx_export.save(program, source, context.store)
    model = protobuf.load(source, load_external_data=False)
    del model.functions[:]
    for node in model.graph.node:
        node.overload = ""
    library = folder / "lib" / plugin_path(device).name
    try:
        artifact.write_bytes(model.SerializeToString())
        library.parent.mkdir(exist_ok=True)
        library.unlink(missing_ok=True)  # may be a link to the library of another bundle, which may be in use
        library.write_bytes(plugin_path(device).read_bytes())
        library.chmod(0o755)
        if not is_shared:
            source.unlink()
    except OSError as error:
        raise FileError.unwritable("the model cannot be written", error, str(error.filename)) from error
    open_session(artifact, device, library)
    return SPEC.artifact


def load(path: Path, device: str) -> Runner:
    """Loads the model that `write` wrote into ONNX Runtime.

    Contiguous, aligned tensors are passed without a copy.

    Raises:
        RefusedError: the library is missing or other users can write to it, or the weights are outside the weights
            folder or truncated.
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
    """Returns the path of the op library in the bundle of an artifact.

    In older bundles, the artifact is in a subfolder of the bundle.
    """
    from fuseconv.ops.library import PLUGINS

    bundle = artifact.parent if (artifact.parent / "lib").is_dir() else artifact.parents[1]
    return bundle / "lib" / PLUGINS[device]

"""Writes a bundle as a model to a Triton Inference Server model repository: `NAME/config.pbtxt` and `NAME/1`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open

from fuseconv.bundle.files import LIBRARIES, WEIGHTS
from fuseconv.bundle.manifest import ONNX, REFERENCE, Manifest, check_outside, open_bundle
from fuseconv.bundle.methods import open_methods, weights_folder
from fuseconv.bundle.staging import staged
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.ops.library import PLUGINS
from fuseconv.pipeline.materialize import materialize
from fuseconv.runtime.choosing_targets import choose_target
from fuseconv.serving.engine import described_outputs
from fuseconv.serving.names import is_name
from fuseconv.serving.tensors import of_torch
from fuseconv.targets import onnx, onnx_plugin, torchscript
from fuseconv.tritonserver.config import WARM_UP, Batching, Tensor, batching, configuration, tensors
from fuseconv.tritonserver.python_parameters import BUNDLE, TARGET
from fuseconv.tritonserver.text import spell
from fuseconv.untrusted.files import is_plain, read_plain
from fuseconv.version import __version__

Backend = Literal["python", "onnxruntime", "pytorch"]

BACKENDS: tuple[Backend, ...] = ("python", "onnxruntime", "pytorch")

CONFIG = "config.pbtxt"

_MARK = "# Written by fuseconv"

_MODEL = '''"""A bundle of fuseconv, which must be installed in this Python, with the extra serve."""

from fuseconv.tritonserver.python_model import TritonPythonModel  # noqa: F401
'''


@dataclass(frozen=True)
class Repository:
    """A model that was written to a model repository.

    Attributes:
        model: the folder of the model.
        name: the name of the model.
        target: the target that Triton runs. None for the bundle's default target on the machine where Triton runs.
        batching: how requests are batched.
        preload: the libraries that Triton must load through LD_PRELOAD.
    """

    model: Path
    name: str
    target: str | None
    batching: Batching
    preload: tuple[str, ...] = ()


def write_repository(
    bundle: Path,
    output: Path,
    name: str,
    *,
    backend: Backend = "python",
    target: str | None = None,
    instances: int = 1,
    served_at: Path | None = None,
) -> Repository:
    """Writes a bundle as a model to a model repository. Leaves other models in the repository unchanged.

    Args:
        bundle: the folder of the bundle, or of one of its methods.
        output: the folder of the repository.
        name: the name of the model.
        backend: the Triton backend that runs the model. `python` loads the bundle as `fuseconv.load` does, and checks
            every request against the contract. `onnxruntime` and `pytorch` run an artifact without this check.
        target: the target to run. Default for `python`: the default target of `fuseconv.load`. Default for
            `onnxruntime`: onnx-plugin if the bundle has it, else onnx. `pytorch` always runs torchscript.
        instances: the number of copies that Triton loads, or on a GPU the number of copies per GPU.
        served_at: the path of the repository on the machine where Triton runs. Default: its path on this machine.

    Raises:
        UsageError: the name is invalid, the backend does not run the target, or the path of the model exists and is
            not a model that fuseconv wrote.
        UnsupportedError: Triton does not support a tensor of the contract, or the backend cannot run a single method.
        RefusedError: the bundle is damaged.
        FileError: the repository cannot be written.
    """
    folder, model = bundle.absolute(), output / name
    if not is_name(name):
        what = f"{name!r} cannot be the name of a model in a URL"
        raise UsageError(what, where="--name", fix="use letters, digits, '.', '_' and '-'")
    manifest = open_bundle(folder)
    check_outside(model, weights_folder(folder))
    inputs, outputs = tensors(manifest.contract, described_outputs(folder, manifest.contract))
    how = batching(manifest.contract, inputs, outputs)
    chosen = _chosen(folder, manifest, backend, target)
    place = (served_at or output.absolute()) / name / "1"
    with staged(model, _check_replaceable) as staging:
        (staging / "1").mkdir()
        parameters, libraries, preload = _WRITERS[backend](folder, manifest, chosen, staging / "1")
        if backend == "pytorch":  # this backend identifies tensors by position
            inputs, outputs = _numbered(inputs), _numbered(outputs)
        message = configuration(
            name,
            {"backend": backend, **({"platform": "pytorch_libtorch"} if backend == "pytorch" else {})},
            inputs,
            outputs,
            how,
            device=manifest.contract.device,
            instances=instances,
            parameters=parameters,
            libraries=[str(place / library) for library in libraries],
            warm_up=_write_warm_up(folder, manifest, inputs, staging, batched=how.limit > 0),
        )
        text = f"{_MARK} {__version__}.\n{spell(message)}"
        (staging / CONFIG).write_text(text, encoding="utf-8")
    return Repository(model, name, chosen, how, tuple(str(place / library) for library in preload))


def _chosen(folder: Path, manifest: Manifest, backend: Backend, target: str | None) -> str | None:
    """Returns the target to run, or None for the bundle's default target on the machine where Triton runs.

    Raises:
        UsageError: the backend does not run the target, or the bundle does not contain the target.
        UnsupportedError: the folder is a method of a bundle, and the backend is not `python`.
    """
    if backend == "python":
        return None if target is None else choose_target(manifest, target, folder)
    known = (onnx_plugin.SPEC.name, onnx.SPEC.name) if backend == "onnxruntime" else (torchscript.SPEC.name,)
    if target is not None and target not in known:
        what = f"the backend {backend} does not run the target {target}"
        raise UsageError(what, where="--target", fix=f"use {' or '.join(known)}, or --backend python")
    if weights_folder(folder) != folder:
        what = f"the backend {backend} cannot run one method of a bundle, whose weights are in another folder"
        raise UnsupportedError(what, where=str(folder), fix="use --backend python")
    found = next((one for one in known if one in manifest.targets), known[0])
    return choose_target(manifest, target or found, folder)


Files = tuple[Mapping[str, str], tuple[str, ...], tuple[str, ...]]
"""The backend's parameters, the libraries that the backend loads, and the libraries that Triton must preload."""


def _write_python(folder: Path, manifest: Manifest, target: str | None, version: Path) -> Files:
    """Copies the whole bundle, even if only one method of it is served, and writes `model.py`."""
    del manifest  # every file is copied
    whole = weights_folder(folder)
    if whole != folder:
        open_methods(whole)
    shutil.copytree(whole, version / BUNDLE)
    (version / "model.py").write_text(_MODEL, encoding="utf-8")
    parameters = {BUNDLE: (Path(BUNDLE) / folder.relative_to(whole)).as_posix()}
    return parameters | ({} if target is None else {TARGET: target}), (), ()


def _write_onnxruntime(folder: Path, manifest: Manifest, target: str | None, version: Path) -> Files:
    """Copies the ONNX model, its weight files and the op library."""
    assert target is not None
    shutil.copy(folder / manifest.targets[target], version / "model.onnx")
    for name in (WEIGHTS, f"{onnx.SPEC.artifact}.data"):
        if (folder / name).is_file():
            shutil.copy(folder / name, version / name)
    if (folder / ONNX).is_dir():
        shutil.copytree(folder / ONNX, version / ONNX)
    if target != onnx_plugin.SPEC.name:
        return {}, (), ()
    library = PLUGINS[manifest.contract.device]
    shutil.copy(folder / LIBRARIES / library, version / library)
    return {}, (library,), ()


def _write_pytorch(folder: Path, manifest: Manifest, target: str | None, version: Path) -> Files:
    """Writes the TorchScript archive with its weights, and copies the op libraries, which Triton must preload."""
    assert target is not None
    materialize(folder, target, version / "model.pt")
    for library in manifest.libraries:
        shutil.copy(folder / library, version / Path(library).name)
    return {}, (), tuple(Path(library).name for library in manifest.libraries)


_WRITERS: Mapping[Backend, Callable[[Path, Manifest, str | None, Path], Files]] = {
    "python": _write_python,
    "onnxruntime": _write_onnxruntime,
    "pytorch": _write_pytorch,
}


def _write_warm_up(
    folder: Path, manifest: Manifest, inputs: list[Tensor], staging: Path, *, batched: bool
) -> dict[str, Tensor]:
    """Writes the inputs of the first verification case as warm-up data. For a batched model, writes only the first row.

    Returns:
        The name, datatype and shape of the tensor in each file, by file name. If an input has no elements, nothing is
        written, and the result is empty.
    """
    found, contents = {}, {}
    with safe_open(folder / REFERENCE, framework="pt") as file:
        for one, spec in zip(inputs, manifest.contract.inputs, strict=True):
            tensor = file.get_tensor(f"0/input/{spec.name}")
            array = of_torch(tensor[:1] if batched else tensor).array
            found[one.name], contents[one.name] = Tensor(one.name, one.datatype, array.shape), array.tobytes()
    if not all(contents.values()):
        return {}
    (staging / WARM_UP).mkdir()
    for name, content in contents.items():
        (staging / WARM_UP / name).write_bytes(content)
    return found


def _numbered(each: list[Tensor]) -> list[Tensor]:
    """Appends each tensor's position to its name, as the PyTorch backend requires: `NAME__0`, `NAME__1`."""
    return [Tensor(f"{one.name}__{at}", one.datatype, one.shape) for at, one in enumerate(each)]


def _check_replaceable(model: Path) -> None:
    """Checks that an existing path may be replaced: it is an empty folder or a model that fuseconv wrote.

    Raises:
        UsageError: the path must not be replaced.
    """
    config = model / CONFIG
    if is_plain(config) and read_plain(config).startswith(_MARK.encode()):
        return
    if model.is_dir() and not any(model.iterdir()):
        return
    what = "the path already exists, but is not a model that fuseconv wrote"
    raise UsageError(what, where=str(model), fix="remove it, or give the model another name with --name")

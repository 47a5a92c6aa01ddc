"""The torchscript target: prints the graph as TorchScript source and compiles it, so that sizes stay dynamic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fuseconv.errors import UnsupportedError
from fuseconv.targets.spec import Context, Runner, TargetSpec

if TYPE_CHECKING:
    from fuseconv.program.captured import Program

SPEC = TargetSpec("torchscript", Path("torchscript", "model.pt"), preference=3, cuda_graphs=True, in_place=True)


def check_machine(device: str) -> None:
    """Does nothing, because writing this target requires only torch."""


def unsupported(program: Program) -> str | None:
    """Returns why TorchScript cannot express the program, or None if it can."""
    from fuseconv.targets.script_source import print_script

    try:
        print_script(program)
    except UnsupportedError as error:
        return error.what
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `torchscript/model.pt` and returns its path relative to `folder`.

    Raises:
        UnsupportedError: a node cannot be expressed in TorchScript.
        FileError: the file cannot be written.
    """
    import torch

    from fuseconv.targets.artifact import hollow, saved
    from fuseconv.targets.script_module import compile_program, quiet
    from fuseconv.weights.store import is_storable
    from fuseconv.weights.table import set_table

    module = compile_program(program)
    table = None
    if context.store is not None:
        weights = {name: tensor for name, tensor in module.named_buffers() if is_storable(tensor)}
        table = context.store.put(SPEC.artifact.parent.as_posix(), weights)
        for name, tensor in weights.items():
            setattr(module, name, hollow(tensor))
    set_table(folder / SPEC.artifact, table)
    with saved(folder / SPEC.artifact) as file, quiet():
        torch.jit.save(module, file)
    return SPEC.artifact


def load(path: Path, device: str) -> Runner:
    """Loads the module that `write` wrote.

    The caller must first load the op libraries that the module calls. On CUDA, this function disables TorchScript's
    pointwise fuser for the whole process, because torch has no narrower switch. The fuser compiles kernels from the
    second call on, and with CUDA 13, kernels that use bfloat16 do not compile.
    """
    import torch

    from fuseconv.targets.artifact import attach
    from fuseconv.targets.script_module import quiet
    from fuseconv.weights.table import weights_of_artifact

    if torch.device(device).type == "cuda":
        torch._C._jit_set_texpr_fuser_enabled(False)
    with quiet():
        module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
    if (weights := weights_of_artifact(path, device)) is not None:
        attach(module, weights, path)
    return module

"""TorchScript, not traced: the graph is printed as TorchScript source, so that every size stays dynamic."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fuseconv.capture import Program
from fuseconv.errors import UnsupportedError
from fuseconv.targets.artifact import Context, Runner, saved
from fuseconv.targets.script_source import Script, print_script

NAME = "torchscript"


def unsupported(program: Program) -> str | None:
    """Says why TorchScript cannot express the program, or None if it can."""
    try:
        print_script(program)
    except UnsupportedError as error:
        return error.what
    return None


def write(program: Program, folder: Path, context: Context) -> Path:
    """Writes `torchscript/model.pt` and returns its path relative to `folder`.

    Raises:
        UnsupportedError: a node has no TorchScript form.
        FileError: the file cannot be written.
    """
    module = compile_script(print_script(program))
    artifact = Path(NAME, "model.pt")
    with saved(folder / artifact) as file, _quiet():
        torch.jit.save(module, file)
    return artifact


def load(path: Path, device: str) -> Runner:
    """Loads what `write` wrote; the op libraries it calls must be loaded before."""
    with _quiet():
        module: Runner = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        return module


def compile_script(script: Script) -> torch.jit.ScriptModule:
    """Compiles printed source over its weights, and proves that the compiler chose the ops that were meant.

    Raises:
        UnsupportedError: the compiler refuses the source, or takes another overload of an op.
    """
    # A class of its own for every model: the compiler keys its types by class, and a type has one forward.
    owner = type("Model", (torch.nn.Module,), {})()
    for name, tensor in script.tensors.items():
        owner.register_buffer(name, tensor.detach())
    with _quiet():
        module: torch.jit.ScriptModule = torch.jit.script(owner)
        try:
            module.define(script.source)
        except RuntimeError as error:
            raise UnsupportedError(
                f"TorchScript does not compile the printed graph: {str(error).strip()}", where="the target torchscript"
            ) from error
    _check_overloads(module, script)
    return module.eval()


def _check_overloads(module: torch.jit.ScriptModule, script: Script) -> None:
    """Source names an op; the compiler picks the overload from the types of the arguments."""
    # The compiler numbers the values of a variable: x.1, x.2.
    chosen = {
        output.debugName().split(".")[0]: node.schema() for node in module.graph.nodes() for output in node.outputs()
    }
    for name, overload in script.overloads.items():
        if (found := chosen.get(name, "nothing")) != str(overload._schema):
            raise UnsupportedError(
                f"TorchScript reads {overload} as {found}",
                where=f"node {name}",
                fix="leave the target torchscript out",
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch, which announces on every use that TorchScript is no longer developed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
        yield

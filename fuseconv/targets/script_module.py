"""TorchScript source compiled to a module, and the proof that the compiler took the ops that were meant."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fuseconv.errors import UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.targets.script_source import Script, print_script


def compile_program(program: Program) -> torch.jit.ScriptModule:
    """Prints a program and compiles it; an op that is taken for another is printed with every argument by its name.

    Raises:
        UnsupportedError: a node has no TorchScript form.
    """
    script = print_script(program)
    module = _compiled(script)
    if taken := _taken_for_others(module, script):
        return compile_script(print_script(program, frozenset(taken)))
    return module.eval()


def compile_script(script: Script) -> torch.jit.ScriptModule:
    """Compiles printed source over its weights, and proves that the compiler chose the ops that were meant.

    Raises:
        UnsupportedError: the compiler refuses the source, or takes another overload of an op.
    """
    module = _compiled(script)
    for name, found in _taken_for_others(module, script).items():
        raise UnsupportedError(
            f"TorchScript reads {script.overloads[name]} as {found}",
            where=f"node {name}",
            fix="leave the target torchscript out",
        )
    return module.eval()


def _compiled(script: Script) -> torch.jit.ScriptModule:
    # A class of its own for every model: the compiler keys its types by class, and a type has one forward.
    owner = type("Model", (torch.nn.Module,), {})()
    for name, tensor in script.tensors.items():
        owner.register_buffer(name, tensor.detach())
    with quiet():
        module: torch.jit.ScriptModule = torch.jit.script(owner)
        try:
            module.define(script.source)
        except RuntimeError as error:
            raise UnsupportedError(
                f"TorchScript failed to compile the generated code: {str(error).strip()}",
                where="the target torchscript",
            ) from error
    return module


def _taken_for_others(module: torch.jit.ScriptModule, script: Script) -> dict[str, str]:
    """Returns the variables computed by another overload than meant, and by which.

    Source names an op; the compiler picks the overload from the types of the arguments.
    """
    # The compiler numbers the values of a variable: x.1, x.2.
    chosen = {
        output.debugName().split(".")[0]: node.schema() for node in module.graph.nodes() for output in node.outputs()
    }
    expected = {name: str(overload._schema) for name, overload in script.overloads.items()}
    # What nothing uses is not compiled.
    return {name: chosen[name] for name in expected if chosen.get(name, expected[name]) != expected[name]}


@contextmanager
def quiet() -> Iterator[None]:
    """Silences torch, which announces on every use that TorchScript is no longer developed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
        yield

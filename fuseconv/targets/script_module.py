"""Compiles TorchScript source to a module and verifies that the compiler resolved the intended ops."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fuseconv.errors import UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.targets.script_source import Script, print_script


def compile_program(program: Program) -> torch.jit.ScriptModule:
    """Prints and compiles a program.

    If the compiler resolves an op wrongly, the program is printed again with all arguments of this op by keyword.

    Raises:
        UnsupportedError: TorchScript cannot express a node.
    """
    script = print_script(program)
    module = _compiled(script)
    if taken := _taken_for_others(module, script):
        return compile_script(print_script(program, frozenset(taken)))
    return module.eval()


def compile_script(script: Script) -> torch.jit.ScriptModule:
    """Compiles the source with its weights and verifies that the compiler resolved the intended ops.

    Raises:
        UnsupportedError: the compiler rejects the source or resolves another overload of an op.
    """
    module = _compiled(script)
    for name, found in _taken_for_others(module, script).items():
        raise UnsupportedError(
            f"TorchScript resolves a call of {script.overloads[name]} to {found}",
            where=f"node {name}",
            fix="leave the target torchscript out",
        )
    return module.eval()


def _compiled(script: Script) -> torch.jit.ScriptModule:
    # A separate class per model: the compiler keys its types by class, and a type has one forward.
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
    """Returns the variables that another overload than intended computes, each with this overload.

    The source code names only an op; the compiler selects the overload from the types of the arguments.
    """
    # The compiler numbers the values of a variable: x.1, x.2.
    chosen = {
        output.debugName().split(".")[0]: node.schema() for node in module.graph.nodes() for output in node.outputs()
    }
    expected = {name: str(overload._schema) for name, overload in script.overloads.items()}
    # Unused values are not compiled.
    return {name: chosen[name] for name in expected if chosen.get(name, expected[name]) != expected[name]}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses torch's deprecation warnings for TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.")  # a FutureWarning from torch 2.15 on
        yield
